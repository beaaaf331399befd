/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Sectors that fail: a bio that touches a bad sector of a live disk returns EIO, by the
 * block layer's error-injection point. Needs CONFIG_FUNCTION_ERROR_INJECTION, BTF, 5.17.
 *
 * should_fail_bio runs once for each layer of a stack, and for a partition's bio before
 * the remap; the rest of a split bio comes here again when it is remapped already
 * (block/blk-core.c). So a bio is matched only on its whole disk, in the disk's sectors.
 *
 * What each operation does:
 *   READ                  fails when it touches a bad sector and reads shall fail
 *   WRITE, WRITE_ZEROES   fail when writes shall fail; else they pass, and where writes
 *                         heal, the sectors that they cover are good from then on. That
 *                         is at submission: a write that fails further down heals too.
 *   DISCARD, SECURE_ERASE, zone operations, flushes without data
 *                         always pass and change nothing
 * A bio that one slot fails heals no other slot's sectors.
 */
#include "faultctl.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define FC_FAIL_READS (1U << 0)
#define FC_FAIL_WRITES (1U << 1)
#define FC_FAIL_HEAL (1U << 2)
#define FC_FAIL_EVENTS (1U << 3)
#define FC_ALWAYS_PPM 1000000U
#define FC_EIO 5
#define FC_BLK_STS_IOERR 10 /* what submit_bio_noacct makes of any error */

/* 1 << BIO_REMAPPED; its enum has no name, so user space looks it up in the BTF. */
const volatile __u32 fc_bio_remapped SEC(".rodata.fc") = 0;

struct fc_fail_slot {
	__u32 flags;
	__u32 rate_ppm;     /* share of the matching bios that fail */
	__u64 seed;
	__u64 cgroup_id;    /* v2; 0: whoever it is */
	__u32 cgroup_level; /* depth of that cgroup, the root is 0 */
	__u32 unused;
};
_Static_assert(sizeof(struct fc_fail_slot) == 32, "layout is shared with bpf_maps.py");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FC_MAX_SLOTS);
	__type(key, __u32);
	__type(value, struct fc_fail_slot);
} fc_fail_slots SEC(".maps");

/* One event under construction: it would be too much for the stack. Safe by CPU, since
 * the trampoline skips (and counts) a program that is active on the CPU already. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fc_bio_event);
} fc_scratch SEC(".maps");

struct fc_query {
	sector_t first;
	sector_t end;
	__u64 bio; /* only to be read with bpf_probe_read_kernel */
	__u64 dir;
};

struct fc_walk {
	void *index;
	sector_t first;
	sector_t end;
	__u32 at;
	bool clear;
	__u64 found; /* sectors */
};

/* One chunk: count the bad sectors in the bio's part of it, or clear them. */
static long visit(__u32 step, struct fc_walk *walk)
{
	__u32 at = walk->at + step;
	struct fc_entry *chunk = bpf_map_lookup_elem(walk->index, &at);
	__u64 mask = ~0ULL, base;

	if (!chunk)
		return 1;
	base = chunk->a << FC_CHUNK_SHIFT;
	if (base >= walk->end)
		return 1;
	if (walk->first > base)
		mask &= ~0ULL << ((walk->first - base) & 63);
	if (walk->end - base < 64)
		mask &= ~0ULL >> ((64 - (walk->end - base)) & 63);
	if (!walk->clear) {
		walk->found = chunk->b & mask;
		return walk->found != 0;
	}
	if (chunk->b & mask)
		walk->found +=
			__builtin_popcountll(__sync_fetch_and_and(&chunk->b, ~mask) & mask);
	return 0;
}

/* Sectors found (at least one, when not clearing) in the slot's chunks. */
static __always_inline __u64 walk_chunks(void *index, const struct fc_query *query, bool clear)
{
	struct fc_walk walk = {
		.index = index, .first = query->first, .end = query->end, .clear = clear
	};
	__u32 zero = 0, stop;
	__u64 span = ((query->end - 1) >> FC_CHUNK_SHIFT) - (query->first >> FC_CHUNK_SHIFT) + 1;
	struct fc_entry *head = bpf_map_lookup_elem(index, &zero);

	if (!head || !head->a)
		return 0;
	stop = 1 + head->a;
	walk.at = fc_lower_bound(index, 1, stop, query->first >> FC_CHUNK_SHIFT);
	if (walk.at >= stop)
		return 0;
	if (span > stop - walk.at)
		span = stop - walk.at;
	bpf_loop(span, visit, &walk, 0);
	return walk.found;
}

/* Is the cgroup that the I/O is charged to the slot's, or below it? */
static __always_inline bool charged_below(struct bio *bio, const struct fc_fail_slot *slot)
{
	struct cgroup *owner, *ancestor = NULL;

	if (!bpf_core_field_exists(bio->bi_blkg) ||
	    !bpf_core_field_exists(((struct cgroup *)0)->ancestors))
		return false;
	owner = BPF_CORE_READ(bio, bi_blkg, blkcg, css.cgroup);
	if (!owner || BPF_CORE_READ(owner, level) < (int)slot->cgroup_level)
		return false;
	bpf_probe_read_kernel(&ancestor, sizeof(ancestor),
			      (void *)owner + bpf_core_field_offset(struct cgroup, ancestors) +
				      slot->cgroup_level * sizeof(void *));
	return BPF_CORE_READ(ancestor, kn, id) == slot->cgroup_id;
}

/* Written-back pages are charged to their owner while a kworker submits them. */
static __always_inline bool in_scope(struct bio *bio, const struct fc_fail_slot *slot)
{
	return !slot->cgroup_id ||
	       bpf_get_current_ancestor_cgroup_id(slot->cgroup_level) == slot->cgroup_id ||
	       charged_below(bio, slot);
}

/* The n-th draw of a seed is always the same (the finalizer of splitmix64). */
static __always_inline bool drawn(const struct fc_fail_slot *slot, struct fc_stats *stats)
{
	__u64 z;

	if (slot->rate_ppm >= FC_ALWAYS_PPM)
		return true;
	z = slot->seed + (__sync_fetch_and_add(&stats->draws, 1) + 1) * 0x9e3779b97f4a7c15ULL;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
	z ^= z >> 31;
	return (z >> 32) * FC_ALWAYS_PPM >> 32 < slot->rate_ppm;
}

/*
 * Functions that are not static: the verifier looks at each once, not once for every
 * slot and path that leads there. They give 1 or 0 for one slot, or a mask of slots.
 */
__noinline int fc_fails(__u64 slots, __u64 slot_no, struct fc_query *query)
{
	__u32 number = slot_no;
	struct fc_fail_slot *slot;
	struct fc_stats *stats;
	void *index;

	if (!query || !(slots >> number & 1))
		return 0;
	slot = bpf_map_lookup_elem(&fc_fail_slots, &number);
	stats = bpf_map_lookup_elem(&fc_slot_stats, &number);
	index = bpf_map_lookup_elem(&fc_indexes, &number);
	if (!slot || !stats || !index)
		return 0;
	if (!(slot->flags & (query->dir == FC_READ ? FC_FAIL_READS : FC_FAIL_WRITES)))
		return 0;
	if (!fc_intervals_hit(index, query->first, query->end) &&
	    !walk_chunks(index, query, false))
		return 0;
	return in_scope((struct bio *)query->bio, slot) && drawn(slot, stats);
}

__noinline int fc_heals(__u64 slots, __u64 slot_no, struct fc_query *query)
{
	__u32 number = slot_no;
	struct fc_fail_slot *slot;
	struct fc_stats *stats;
	__u64 healed;
	void *index;

	if (!query || !(slots >> number & 1))
		return 0;
	slot = bpf_map_lookup_elem(&fc_fail_slots, &number);
	stats = bpf_map_lookup_elem(&fc_slot_stats, &number);
	index = bpf_map_lookup_elem(&fc_indexes, &number);
	if (!slot || !stats || !index || !(slot->flags & FC_FAIL_HEAL))
		return 0;
	healed = walk_chunks(index, query, true);
	if (healed)
		__sync_fetch_and_add(&stats->healed_sectors, healed);
	return healed != 0;
}

__noinline int fc_report(__u64 slots, __u64 slot_no, struct fc_bio_event *event, __u64 end_io)
{
	__u32 number = slot_no;
	struct fc_fail_slot *slot;
	struct fc_stats *stats;

	if (!event || !(slots >> number & 1))
		return 0;
	slot = bpf_map_lookup_elem(&fc_fail_slots, &number);
	stats = bpf_map_lookup_elem(&fc_slot_stats, &number);
	if (!slot || !stats)
		return 0;
	fc_count(stats, event->class, event->dir, event->status != 0, event->ts_ns);
	event->slot = number;
	if (slot->flags & FC_FAIL_EVENTS)
		fc_emit(stats, event, (void *)end_io);
	return 0;
}

/* Slots that fail this bio, as a mask. */
__noinline __u64 fc_failing_slots(__u64 slots, struct fc_query *query)
{
	__u64 failing = 0;

	for (__u64 slot = 0; slot < FC_MAX_SLOTS; slot++) {
		if (!(slots >> slot))
			break;
		failing |= (__u64)(fc_fails(slots, slot, query) & 1) << slot;
	}
	return failing;
}

/* Slots of which this write heals a sector, as a mask. */
__noinline __u64 fc_healing_slots(__u64 slots, struct fc_query *query)
{
	__u64 healing = 0;

	for (__u64 slot = 0; slot < FC_MAX_SLOTS; slot++) {
		if (!(slots >> slot))
			break;
		healing |= (__u64)(fc_heals(slots, slot, query) & 1) << slot;
	}
	return healing;
}

__noinline int fc_report_all(__u64 slots, struct fc_bio_event *event, __u64 end_io)
{
	if (!event)
		return 0;
	for (__u64 slot = 0; slot < FC_MAX_SLOTS; slot++) {
		if (!(slots >> slot))
			break;
		fc_report(slots, slot, event, end_io);
	}
	return 0;
}

static __always_inline void report(__u64 slots, struct bio *bio, sector_t sector, __u8 status)
{
	__u32 zero = 0;
	struct fc_bio_event *event = bpf_map_lookup_elem(&fc_scratch, &zero);

	if (!event)
		return;
	fc_describe(event, bio, sector);
	event->ts_ns = event->queued_ns;
	event->status = status;
	fc_report_all(slots, event, (__u64)bio->bi_end_io);
}

SEC("fmod_ret/should_fail_bio")
int BPF_PROG(fc_should_fail_bio, struct bio *bio, int ret)
{
	__u64 slots = fc_disk_slots(bio->bi_bdev);
	struct fc_query query = {};
	__u64 failing, hits;

	if (!slots || ret || !bio->bi_iter.bi_size)
		return ret;
	query.dir = fc_bio_dir(bio->bi_opf);
	if (query.dir == FC_OTHER)
		return 0;
	query.bio = (__u64)bio;
	query.first = bio->bi_iter.bi_sector;
	if (!(bio->bi_flags & fc_bio_remapped))
		query.first += bio->bi_bdev->bd_start_sect;
	query.end = query.first + (bio->bi_iter.bi_size >> FC_SECTOR_SHIFT);
	failing = fc_failing_slots(slots, &query);
	hits = failing;
	if (!failing && query.dir == FC_WRITE)
		hits = fc_healing_slots(slots, &query);
	if (hits)
		report(hits, bio, query.first, failing ? FC_BLK_STS_IOERR : 0);
	return failing ? -FC_EIO : 0;
}
