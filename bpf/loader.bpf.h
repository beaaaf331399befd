/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The macros by which one source compiles two ways: by clang into a CO-RE object that libbpf
 * loads, and by bcc on the node (FC_BCC; nodeagent/bcc_child.py), whose instructions the agent
 * links and loads itself (nodeagent/encode/bpf_link.py).
 *
 *   FC_MAP(name)        a map's address
 *   FC_PRESET(name)     declares a number that is set before the program is loaded
 *   FC_VALUE(name)      that number
 *   FC_EXISTS(s, m)     whether this kernel's structure s has the member m
 *   FC_OFFSET(s, m)     where it has it
 *   FC_SUBPROG_n(...)   a function of n parameters that the verifier looks at by itself
 *   BPF_CORE_READ       members by pointers, wherever this kernel has them
 *
 * Under bcc the kernel's structures are written anew for the running kernel, so that their
 * members lie where it has them; there are no global variables, no callbacks, and every
 * function that is not static is a program.
 */
#ifndef FAULTCTL_LOADER_BPF_H
#define FAULTCTL_LOADER_BPF_H

#define FC_OPAQUE(value) asm volatile("" : "+r"(value))

#ifndef FC_BCC

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

typedef _Bool bool;
#define false 0
#define true 1

#define FC_MAP(name) ((void *)&(name))
#define FC_PRESET(name) const volatile __u32 name SEC(".rodata.fc") = 0
#define FC_VALUE(name) (name)
#define FC_EXISTS(type, member) bpf_core_field_exists(((struct type *)0)->member)
#define FC_OFFSET(type, member) bpf_core_field_offset(struct type, member)
#define FC_HELPER_EXISTS(name) bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_##name)
#define FC_LICENSE char LICENSE[] SEC("license") = "Dual MIT/GPL"
#ifdef FC_MAPS_ONLY
#define FC_SUBPROG static __always_inline
#else
#define FC_SUBPROG __noinline
#endif
#define FC_SUBPROG_1(type, name, t1, a1) FC_SUBPROG type name(t1 a1)
#define FC_SUBPROG_2(type, name, t1, a1, t2, a2) FC_SUBPROG type name(t1 a1, t2 a2)
#define FC_SUBPROG_3(type, name, t1, a1, t2, a2, t3, a3) \
	FC_SUBPROG type name(t1 a1, t2 a2, t3 a3)
#define FC_SUBPROG_4(type, name, t1, a1, t2, a2, t3, a3, t4, a4) \
	FC_SUBPROG type name(t1 a1, t2 a2, t3 a3, t4 a4)

#else

#undef SEC
#define SEC(section)
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif

/* The linker knows them by these: 1 is BPF_PSEUDO_MAP_FD, the preset stands for itself. */
#define FC_MAP(name) ((void *)bpf_pseudo_fd(1, FC_MAP_##name))
#define FC_PRESET(name) struct fc_no_preset_##name
#define FC_VALUE(name) ((__u32)bpf_pseudo_fd(0, FC_PRESET_##name))
#define FC_EXISTS(type, member) FC_HAS_##type##_##member
#define FC_OFFSET(type, member) __builtin_offsetof(struct type, member)
#define FC_HELPER_EXISTS(name) 1 /* with the attach cookies that are asked for anyway */
#define FC_LICENSE struct fc_no_license
#define bpf_core_read(to, size, from) bpf_probe_read_kernel(to, size, from)

static void *(*fc_map_lookup)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*fc_map_update)(void *map, const void *key, const void *value,
			     __u64 flags) = (void *)BPF_FUNC_map_update_elem;
static long (*fc_map_delete)(void *map, const void *key) = (void *)BPF_FUNC_map_delete_elem;
#define bpf_map_lookup_elem(map, key) fc_map_lookup(map, key)
#define bpf_map_update_elem(map, key, value, flags) fc_map_update(map, key, value, flags)
#define bpf_map_delete_elem(map, key) fc_map_delete(map, key)

#define FC_READ(pointer, member)                                                         \
	({                                                                               \
		typeof((pointer)->member) fc_value;                                      \
											 \
		bpf_probe_read_kernel(&fc_value, sizeof(fc_value), &(pointer)->member);  \
		fc_value;                                                                \
	})
#define FC_READ_1(p, a) FC_READ(p, a)
#define FC_READ_2(p, a, b) FC_READ(FC_READ(p, a), b)
#define FC_READ_3(p, a, b, c) FC_READ(FC_READ_2(p, a, b), c)
#define FC_READ_4(p, a, b, c, d) FC_READ(FC_READ_3(p, a, b, c), d)
#define FC_PICK(_1, _2, _3, _4, name, ...) name
#define BPF_CORE_READ(p, ...) \
	FC_PICK(__VA_ARGS__, FC_READ_4, FC_READ_3, FC_READ_2, FC_READ_1)(p, __VA_ARGS__)

#endif
#endif
