/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Children of a targeted process tree are targets from their birth, before their first
 * instruction; processes that end leave the table. Attached only while a tree is a target.
 */
#include "syscall.bpf.h"

FC_LICENSE;

static __always_inline void count_lost(__u64 slots)
{
	for (__u64 slot = 0; slot < FC_MAX_SLOTS; slot++) {
		__u32 number = slot;
		struct fc_call_stats *stats = bpf_map_lookup_elem(FC_MAP(fc_call_stats), &number);

		if (stats && slots >> slot & 1)
			__sync_fetch_and_add(&stats->lost, 1);
	}
}

SEC("raw_tp/sched_process_fork")
int fc_tree_fork(__u64 *ctx)
{
	struct task_struct *parent = (void *)ctx[0], *child = (void *)ctx[1];
	__u32 tgid = BPF_CORE_READ(parent, tgid), born = BPF_CORE_READ(child, tgid);
	struct fc_process *known, fresh = {};

	if (tgid == born)
		return 0; /* a thread */
	known = bpf_map_lookup_elem(FC_MAP(fc_tgids), &tgid);
	if (!known || !known->tree || known->start_ticks != fc_start_ticks(parent))
		return 0;
	fresh.start_ticks = fc_start_ticks(child);
	fresh.slots = fresh.tree = known->tree;
	if (bpf_map_update_elem(FC_MAP(fc_tgids), &born, &fresh, BPF_ANY))
		count_lost(fresh.tree);
	return 0;
}

SEC("raw_tp/sched_process_exit")
int fc_tree_exit(__u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	__u32 tgid = BPF_CORE_READ(task, tgid);

	if (BPF_CORE_READ(task, signal, live.counter))
		return 0; /* other threads live on */
	bpf_map_delete_elem(FC_MAP(fc_tgids), &tgid);
	return 0;
}
