from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorInfo(_message.Message):
    __slots__ = ("code", "what", "why", "hint")
    CODE_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    code: str
    what: str
    why: str
    hint: str
    def __init__(self, code: _Optional[str] = ..., what: _Optional[str] = ..., why: _Optional[str] = ..., hint: _Optional[str] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("api_version", "agent_version", "facts_json", "kinds", "guardian", "boottime_ns", "epoch")
    API_VERSION_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    FACTS_JSON_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    GUARDIAN_FIELD_NUMBER: _ClassVar[int]
    BOOTTIME_NS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    api_version: int
    agent_version: str
    facts_json: str
    kinds: _containers.RepeatedCompositeFieldContainer[KindSupport]
    guardian: str
    boottime_ns: int
    epoch: int
    def __init__(self, api_version: _Optional[int] = ..., agent_version: _Optional[str] = ..., facts_json: _Optional[str] = ..., kinds: _Optional[_Iterable[_Union[KindSupport, _Mapping]]] = ..., guardian: _Optional[str] = ..., boottime_ns: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class KindSupport(_message.Message):
    __slots__ = ("kind", "rungs")
    KIND_FIELD_NUMBER: _ClassVar[int]
    RUNGS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    rungs: _containers.RepeatedCompositeFieldContainer[RungSupport]
    def __init__(self, kind: _Optional[str] = ..., rungs: _Optional[_Iterable[_Union[RungSupport, _Mapping]]] = ...) -> None: ...

class RungSupport(_message.Message):
    __slots__ = ("mechanism", "missing")
    MECHANISM_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    mechanism: str
    missing: str
    def __init__(self, mechanism: _Optional[str] = ..., missing: _Optional[str] = ...) -> None: ...

class PlanRequest(_message.Message):
    __slots__ = ("request_json",)
    REQUEST_JSON_FIELD_NUMBER: _ClassVar[int]
    request_json: str
    def __init__(self, request_json: _Optional[str] = ...) -> None: ...

class PlanReply(_message.Message):
    __slots__ = ("plan_json", "digest")
    PLAN_JSON_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    plan_json: str
    digest: str
    def __init__(self, plan_json: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class ApplyRequest(_message.Message):
    __slots__ = ("request_json", "lease_json", "digest")
    REQUEST_JSON_FIELD_NUMBER: _ClassVar[int]
    LEASE_JSON_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    request_json: str
    lease_json: str
    digest: str
    def __init__(self, request_json: _Optional[str] = ..., lease_json: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class Fault(_message.Message):
    __slots__ = ("id", "kind", "state", "end_reason", "mechanism", "target", "owner", "created", "lease_left_ns", "hard_end_left_ns", "biting", "error", "plan_json", "evidence_json")
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    END_REASON_FIELD_NUMBER: _ClassVar[int]
    MECHANISM_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    LEASE_LEFT_NS_FIELD_NUMBER: _ClassVar[int]
    HARD_END_LEFT_NS_FIELD_NUMBER: _ClassVar[int]
    BITING_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PLAN_JSON_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_JSON_FIELD_NUMBER: _ClassVar[int]
    id: str
    kind: str
    state: str
    end_reason: str
    mechanism: str
    target: str
    owner: str
    created: str
    lease_left_ns: int
    hard_end_left_ns: int
    biting: bool
    error: str
    plan_json: str
    evidence_json: str
    def __init__(self, id: _Optional[str] = ..., kind: _Optional[str] = ..., state: _Optional[str] = ..., end_reason: _Optional[str] = ..., mechanism: _Optional[str] = ..., target: _Optional[str] = ..., owner: _Optional[str] = ..., created: _Optional[str] = ..., lease_left_ns: _Optional[int] = ..., hard_end_left_ns: _Optional[int] = ..., biting: _Optional[bool] = ..., error: _Optional[str] = ..., plan_json: _Optional[str] = ..., evidence_json: _Optional[str] = ...) -> None: ...

class FaultReply(_message.Message):
    __slots__ = ("fault",)
    FAULT_FIELD_NUMBER: _ClassVar[int]
    fault: Fault
    def __init__(self, fault: _Optional[_Union[Fault, _Mapping]] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class RevertRequest(_message.Message):
    __slots__ = ("id", "remedy")
    ID_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    id: str
    remedy: str
    def __init__(self, id: _Optional[str] = ..., remedy: _Optional[str] = ...) -> None: ...

class RevertReply(_message.Message):
    __slots__ = ("fault", "already_ended", "steps")
    FAULT_FIELD_NUMBER: _ClassVar[int]
    ALREADY_ENDED_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    fault: Fault
    already_ended: bool
    steps: _containers.RepeatedCompositeFieldContainer[StepResult]
    def __init__(self, fault: _Optional[_Union[Fault, _Mapping]] = ..., already_ended: _Optional[bool] = ..., steps: _Optional[_Iterable[_Union[StepResult, _Mapping]]] = ...) -> None: ...

class StepResult(_message.Message):
    __slots__ = ("index", "result", "error")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    index: int
    result: str
    error: str
    def __init__(self, index: _Optional[int] = ..., result: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("active_only", "id")
    ACTIVE_ONLY_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    active_only: bool
    id: str
    def __init__(self, active_only: _Optional[bool] = ..., id: _Optional[str] = ...) -> None: ...

class ListReply(_message.Message):
    __slots__ = ("faults",)
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    faults: _containers.RepeatedCompositeFieldContainer[Fault]
    def __init__(self, faults: _Optional[_Iterable[_Union[Fault, _Mapping]]] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("after_seq", "id", "follow")
    AFTER_SEQ_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    after_seq: int
    id: str
    follow: bool
    def __init__(self, after_seq: _Optional[int] = ..., id: _Optional[str] = ..., follow: _Optional[bool] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("seq", "fault_id", "type", "boottime_ns", "wall", "data_json")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    FAULT_ID_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    BOOTTIME_NS_FIELD_NUMBER: _ClassVar[int]
    WALL_FIELD_NUMBER: _ClassVar[int]
    DATA_JSON_FIELD_NUMBER: _ClassVar[int]
    seq: int
    fault_id: str
    type: str
    boottime_ns: int
    wall: str
    data_json: str
    def __init__(self, seq: _Optional[int] = ..., fault_id: _Optional[str] = ..., type: _Optional[str] = ..., boottime_ns: _Optional[int] = ..., wall: _Optional[str] = ..., data_json: _Optional[str] = ...) -> None: ...

class DoctorRequest(_message.Message):
    __slots__ = ("purge",)
    PURGE_FIELD_NUMBER: _ClassVar[int]
    purge: bool
    def __init__(self, purge: _Optional[bool] = ...) -> None: ...

class DoctorReply(_message.Message):
    __slots__ = ("findings",)
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    def __init__(self, findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ...) -> None: ...

class Finding(_message.Message):
    __slots__ = ("severity", "what", "detail", "removed")
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    severity: str
    what: str
    detail: str
    removed: bool
    def __init__(self, severity: _Optional[str] = ..., what: _Optional[str] = ..., detail: _Optional[str] = ..., removed: _Optional[bool] = ...) -> None: ...

class VolumeRequest(_message.Message):
    __slots__ = ("action", "device", "name")
    class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        LIST: _ClassVar[VolumeRequest.Action]
        PREPARE: _ClassVar[VolumeRequest.Action]
        RELEASE: _ClassVar[VolumeRequest.Action]
    LIST: VolumeRequest.Action
    PREPARE: VolumeRequest.Action
    RELEASE: VolumeRequest.Action
    ACTION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    action: VolumeRequest.Action
    device: str
    name: str
    def __init__(self, action: _Optional[_Union[VolumeRequest.Action, str]] = ..., device: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class VolumeReply(_message.Message):
    __slots__ = ("volumes",)
    VOLUMES_FIELD_NUMBER: _ClassVar[int]
    volumes: _containers.RepeatedCompositeFieldContainer[Volume]
    def __init__(self, volumes: _Optional[_Iterable[_Union[Volume, _Mapping]]] = ...) -> None: ...

class Volume(_message.Message):
    __slots__ = ("name", "path", "device", "sectors", "mountpoints")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SECTORS_FIELD_NUMBER: _ClassVar[int]
    MOUNTPOINTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    path: str
    device: str
    sectors: int
    mountpoints: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., path: _Optional[str] = ..., device: _Optional[str] = ..., sectors: _Optional[int] = ..., mountpoints: _Optional[_Iterable[str]] = ...) -> None: ...

class ProbeRequest(_message.Message):
    __slots__ = ("probe_json",)
    PROBE_JSON_FIELD_NUMBER: _ClassVar[int]
    probe_json: str
    def __init__(self, probe_json: _Optional[str] = ...) -> None: ...

class ProbeSample(_message.Message):
    __slots__ = ("boottime_ns", "verdict", "duration_ns", "reason", "data_json")
    BOOTTIME_NS_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DATA_JSON_FIELD_NUMBER: _ClassVar[int]
    boottime_ns: int
    verdict: str
    duration_ns: int
    reason: str
    data_json: str
    def __init__(self, boottime_ns: _Optional[int] = ..., verdict: _Optional[str] = ..., duration_ns: _Optional[int] = ..., reason: _Optional[str] = ..., data_json: _Optional[str] = ...) -> None: ...

class ExposureRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class ExposureReply(_message.Message):
    __slots__ = ("armed", "exposure_json", "boottime_ns")
    ARMED_FIELD_NUMBER: _ClassVar[int]
    EXPOSURE_JSON_FIELD_NUMBER: _ClassVar[int]
    BOOTTIME_NS_FIELD_NUMBER: _ClassVar[int]
    armed: bool
    exposure_json: str
    boottime_ns: int
    def __init__(self, armed: _Optional[bool] = ..., exposure_json: _Optional[str] = ..., boottime_ns: _Optional[int] = ...) -> None: ...
