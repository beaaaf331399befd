/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Evidence from the block layer: which bio that touched a watched range ended how,
 * and who had sent it. Needs BTF and 5.16 or later.
 *
 * block_bio_queue runs in the submitter's context (a kworker's when io.max made the bio
 * wait) and after the partition remap, so the sector is the whole disk's. The end comes
 * one of two ways: drivers without requests (device-mapper, md) end the bio itself,
 * which is block_bio_complete; for all others blk_update_request says block_rq_complete
 * and then keeps block_bio_complete silent (block/blk-mq.c). A bio that is too large for
 * a request is split: the front part is a new bio that points to the old one, and each
 * part is followed by itself, as the drive's commands are (block/blk-merge.c).
 * A bio that should_fail_bio rejects is never queued: bio_fail reports those itself.
 */
#include "faultctl.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define FC_EMIT_OK_SHIFT 0     /* bits 0..2: successful reads, writes, others */
#define FC_EMIT_FAILED_SHIFT 3 /* bits 3..5: failed reads, writes, others */
#define FC_EMIT_ANY_CLASS (1U << 6)

/* Slot -> which events to send. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FC_MAX_SLOTS);
	__type(key, __u32);
	__type(value, __u32);
} fc_emit_mask SEC(".maps");

struct fc_inflight {
	struct fc_bio_event event;
	__u64 slots;
	void *end_io;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, __u64);
	__type(value, struct fc_inflight);
} fc_inflight_bios SEC(".maps");

struct fc_health {
	__u64 inflight_full; /* more watched bios under way than the map holds */
	__u64 mismatched;    /* the bio's memory was used again without a completion */
	__u64 cut_short;     /* requests of more bios than were looked at */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fc_health);
} fc_trace_health SEC(".maps");

#define FC_MAX_BIOS 256 /* of one request: as many as it may have segments, mostly 128 */

/* How many bios are followed now: without any, a completion costs one read. */
__u64 fc_following = 0;

static __always_inline struct fc_health *health(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&fc_trace_health, &zero);
}

#define FC_HEALTH_ADD(member)                                               \
	do {                                                                \
		struct fc_health *state = health();                         \
									    \
		if (state)                                                  \
			__sync_fetch_and_add(&state->member, 1);            \
	} while (0)

static __always_inline void follow(__u64 key, const struct fc_inflight *started)
{
	if (!bpf_map_update_elem(&fc_inflight_bios, &key, started, BPF_NOEXIST))
		__sync_fetch_and_add(&fc_following, 1);
	else if (bpf_map_update_elem(&fc_inflight_bios, &key, started, BPF_EXIST))
		FC_HEALTH_ADD(inflight_full);
}

static __always_inline void forget(__u64 key)
{
	if (!bpf_map_delete_elem(&fc_inflight_bios, &key))
		__sync_fetch_and_sub(&fc_following, 1);
}

/*
 * Functions that are not static: the verifier looks at each once, not once for every
 * slot and path that leads there.
 */
__noinline int fc_slot_watches(__u64 slots, __u64 slot_no, __u64 first, __u64 end)
{
	__u32 slot = slot_no;
	void *index;

	if (!(slots >> slot & 1))
		return 0;
	index = bpf_map_lookup_elem(&fc_indexes, &slot);
	return index && fc_intervals_hit(index, first, end);
}

/* Which of the given slots watch a part of [first, end)? */
__noinline __u64 fc_watching(__u64 slots, sector_t first, sector_t end)
{
	__u64 hits = 0;

	for (__u64 slot = 0; slot < FC_MAX_SLOTS; slot++) {
		if (!(slots >> slot))
			break;
		hits |= (__u64)(fc_slot_watches(slots, slot, first, end) & 1) << slot;
	}
	return hits;
}

SEC("tp_btf/block_bio_queue")
int BPF_PROG(fc_bio_queue, struct bio *bio)
{
	struct fc_inflight started = {};
	__u64 slots = fc_disk_slots(bio->bi_bdev);
	sector_t sector;

	if (!slots || !bio->bi_iter.bi_size)
		return 0;
	sector = bio->bi_iter.bi_sector;
	started.slots = fc_watching(slots, sector,
				    sector + (bio->bi_iter.bi_size >> FC_SECTOR_SHIFT));
	if (!started.slots)
		return 0;
	fc_describe(&started.event, bio, sector);
	started.end_io = bio->bi_end_io;
	follow((__u64)bio, &started);
	return 0;
}

/* Give a followed bio other sectors; the slots that watch them, none: forget it. */
static __always_inline void move_to(struct fc_inflight *bio, sector_t sector, __u32 nr_sectors)
{
	struct fc_disk *disk = bpf_map_lookup_elem(&fc_disks, &bio->event.dev);

	bio->event.sector = sector;
	bio->event.nr_sectors = nr_sectors;
	bio->slots = disk ? fc_watching(disk->slots, sector, sector + nr_sectors) : 0;
}

/* front: the new bio with the first sectors; the old one, its parent, keeps the rest. */
SEC("tp_btf/block_split")
int BPF_PROG(fc_bio_split, struct bio *front, unsigned int new_sector)
{
	__u64 parent = (__u64)front->bi_private;
	struct fc_inflight *rest, part;
	sector_t sector = front->bi_iter.bi_sector;
	__u32 nr_sectors = front->bi_iter.bi_size >> FC_SECTOR_SHIFT;

	if (!fc_following)
		return 0;
	rest = bpf_map_lookup_elem(&fc_inflight_bios, &parent);
	if (!rest || sector != rest->event.sector || nr_sectors >= rest->event.nr_sectors)
		return 0;
	__builtin_memcpy(&part, rest, sizeof(part));
	move_to(&part, sector, nr_sectors);
	if (part.slots)
		follow((__u64)front, &part);
	move_to(rest, sector + nr_sectors, rest->event.nr_sectors - nr_sectors);
	if (!rest->slots)
		forget(parent);
	return 0;
}

static __always_inline bool wanted(__u32 slot, const struct fc_bio_event *event)
{
	__u32 *mask = bpf_map_lookup_elem(&fc_emit_mask, &slot);
	__u32 shift = event->status ? FC_EMIT_FAILED_SHIFT : FC_EMIT_OK_SHIFT;

	if (!mask || !(*mask >> (shift + event->dir) & 1))
		return false;
	return event->class == FC_WORKLOAD || (*mask & FC_EMIT_ANY_CLASS);
}

__noinline int fc_account(struct fc_inflight *done, __u64 slot_no)
{
	__u32 slot = slot_no;
	struct fc_stats *stats;

	if (!done || !(done->slots >> slot & 1))
		return 0;
	stats = bpf_map_lookup_elem(&fc_slot_stats, &slot);
	if (!stats)
		return 0;
	fc_count(stats, done->event.class, done->event.dir, done->event.status != 0,
		 done->event.ts_ns);
	done->event.slot = slot;
	if (wanted(slot, &done->event))
		fc_emit(stats, &done->event, done->end_io);
	return 0;
}

/*
 * A bio has ended (or, with more sectors to come, a part of it has) with this status.
 * bio: the address of its address, as a pointer itself is no argument. sector: where its
 * iterator stands, which is moved on by what was done before.
 */
__noinline int fc_ended(__u64 *bio, __u64 sector, __u64 op, __u64 status, __u64 more)
{
	struct fc_inflight *done;
	__u64 key;

	if (!bio)
		return 0;
	key = *bio;
	done = bpf_map_lookup_elem(&fc_inflight_bios, &key);
	if (!done)
		return 0;
	if (sector - done->event.sector > done->event.nr_sectors || op != done->event.op) {
		FC_HEALTH_ADD(mismatched);
		forget(key);
		return 0;
	}
	if (status)
		done->event.status = status;
	if (more)
		return 0;
	done->event.ts_ns = bpf_ktime_get_boot_ns();
	for (__u64 slot = 0; slot < FC_MAX_SLOTS; slot++) {
		if (!(done->slots >> slot))
			break;
		fc_account(done, slot);
	}
	forget(key);
	return 0;
}

SEC("tp_btf/block_bio_complete")
int BPF_PROG(fc_bio_complete, struct request_queue *queue, struct bio *bio)
{
	__u64 key = (__u64)bio;

	if (fc_following)
		fc_ended(&key, bio->bi_iter.bi_sector, bio->bi_opf & FC_REQ_OP_MASK,
			 bio->bi_status, false);
	return 0;
}

/* The first nr_bytes of the request's bios have ended; the last of them perhaps in part. */
SEC("tp_btf/block_rq_complete")
int BPF_PROG(fc_rq_complete, struct request *rq, __u8 error, unsigned int nr_bytes)
{
	struct bio *bio = rq->bio;
	__u64 left = nr_bytes;

	if (!fc_following)
		return 0;
	for (int i = 0; i < FC_MAX_BIOS; i++) {
		__u64 key = (__u64)bio;
		__u32 size;

		if (!bio || !left)
			return 0;
		size = bio->bi_iter.bi_size;
		fc_ended(&key, bio->bi_iter.bi_sector, bio->bi_opf & FC_REQ_OP_MASK, error,
			 size > left);
		left -= size > left ? left : size;
		bio = bio->bi_next;
	}
	if (bio && left)
		FC_HEALTH_ADD(cut_short);
	return 0;
}
