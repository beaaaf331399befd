/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * What every BPF program of faultctl shares: the few kernel structures it reads
 * (CO-RE: libbpf fixes the offsets from the running kernel's BTF), the layouts
 * that user space reads and writes (nodeagent/encode/bpf_maps.py has the same
 * ones in Python), and the sector index.
 */
#ifndef FAULTCTL_BPF_H
#define FAULTCTL_BPF_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#ifndef BPF_F_INNER_MAP
#define BPF_F_INNER_MAP (1U << 12)
#endif

typedef __u64 sector_t;
typedef _Bool bool;
#define false 0
#define true 1

/* ---- the kernel's structures, only the members that are read ---- */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct kernfs_node {
	__u64 id;
};

struct cgroup {
	struct kernfs_node *kn;
	int level;
	struct cgroup *ancestors[];
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
};

struct blkcg {
	struct cgroup_subsys_state css;
};

struct blkcg_gq {
	struct blkcg *blkcg;
};

struct gendisk {
	int major;
	int first_minor;
	__u64 diskseq; /* 5.15 */
};

struct block_device {
	sector_t bd_start_sect;
	__u32 bd_dev;
	struct gendisk *bd_disk;
};

struct bvec_iter {
	sector_t bi_sector;
	unsigned int bi_size;
};

struct bio {
	struct bio *bi_next;
	struct block_device *bi_bdev;
	unsigned int bi_opf;
	unsigned short bi_flags;
	__u8 bi_status;
	struct bvec_iter bi_iter;
	void *bi_end_io;
	void *bi_private;
	struct blkcg_gq *bi_blkg;
};

struct request {
	struct bio *bio;
};

struct request_queue;

struct task_struct {
	struct task_struct *real_parent;
	char comm[16];
};

/* The values of these two moved between kernels, so they are CO-RE as well. */
enum req_flag_bits {
	__REQ_SYNC = 11,
	__REQ_META = 12,
	__REQ_FUA = 17,
	__REQ_PREFLUSH = 18,
	__REQ_RAHEAD = 19,
	__REQ_BACKGROUND = 20,
	__REQ_NOWAIT = 21,
	__REQ_SWAP = 24,
};

enum req_op {
	REQ_OP_READ = 0,
	REQ_OP_WRITE = 1,
	REQ_OP_WRITE_ZEROES = 9,
};

#pragma clang attribute pop

#define FC_REQ_OP_MASK 0xff /* include/linux/blk_types.h: REQ_OP_BITS is 8 */
#define FC_SECTOR_SHIFT 9

/* ---- layouts shared with user space ---- */
#define FC_MAX_SLOTS 64
#define FC_COMM_LEN 16
#define FC_SYMBOL_LEN 32

/* Who submitted a bio: evidence counts only FC_WORKLOAD. */
enum fc_class {
	FC_WORKLOAD = 0,
	FC_UDEV = 1,     /* udev's workers read every device after a change */
	FC_EXCLUDED = 2, /* the agent itself and what it was told to leave out */
	FC_CLASSES = 3,
};

enum fc_dir {
	FC_READ = 0,
	FC_WRITE = 1, /* REQ_OP_WRITE and REQ_OP_WRITE_ZEROES */
	FC_OTHER = 2, /* discards, zone management */
	FC_DIRS = 3,
};

/* Bits of fc_bio_event.flags: our own, so that no kernel version shows. */
#define FC_BIO_SYNC (1U << 0)
#define FC_BIO_META (1U << 1)
#define FC_BIO_FUA (1U << 2)
#define FC_BIO_PREFLUSH (1U << 3)
#define FC_BIO_RAHEAD (1U << 4)
#define FC_BIO_BACKGROUND (1U << 5)
#define FC_BIO_NOWAIT (1U << 6)
#define FC_BIO_SWAP (1U << 7)

struct fc_bio_event {
	__u64 ts_ns;      /* CLOCK_BOOTTIME, when the status was known */
	__u64 queued_ns;  /* CLOCK_BOOTTIME, when the bio was submitted */
	__u64 sector;     /* of the whole disk, 512-byte units */
	__u64 cgroup_id;  /* of the submitting task, v2 */
	__u64 blkcg_id;   /* of the cgroup that the I/O is charged to; 0 unknown */
	__u32 nr_sectors;
	__u32 dev;        /* whole disk: major << 20 | minor */
	__u32 part_dev;   /* what the bio was sent to: the partition or the disk */
	__u32 tgid;
	__u32 pid;
	__u32 flags;
	__u32 slot;
	__u8 op;          /* REQ_OP_* of the kernel */
	__u8 dir;         /* enum fc_dir */
	__u8 status;      /* blk_status_t */
	__u8 class;       /* enum fc_class */
	char comm[FC_COMM_LEN];
	char end_io[FC_SYMBOL_LEN]; /* completion function: tells direct from buffered */
};
_Static_assert(sizeof(struct fc_bio_event) == 120, "layout is shared with bpf_maps.py");

struct fc_class_stats {
	__u64 ok[FC_DIRS];
	__u64 failed[FC_DIRS];
	__u64 first_failed_ns;
	__u64 last_failed_ns;
};

struct fc_stats {
	struct fc_class_stats class[FC_CLASSES];
	__u64 healed_sectors; /* bits that writes cleared (bio_fail only) */
	__u64 draws;          /* how often the rate was asked (bio_fail only) */
	__u64 lost_events;    /* the ring buffer was full */
};
_Static_assert(sizeof(struct fc_stats) == 216, "layout is shared with bpf_maps.py");

/*
 * The sector index of one slot: an array of entries, swapped as a whole.
 *   [0]                a = number of chunks, b = number of intervals
 *   [1 .. chunks]      a = sector >> 6, b = bitmap of those 64 sectors; sorted by a
 *   [then intervals]   a = end (exclusive), b = start; sorted, disjoint
 */
struct fc_entry {
	__u64 a;
	__u64 b;
};

#define FC_CHUNK_SHIFT 6
#define FC_MAX_ENTRIES (1U << 20)
#define FC_SEARCH_STEPS 21 /* log2(FC_MAX_ENTRIES) + 1 */

struct fc_index {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_INNER_MAP);
	__uint(key_size, sizeof(__u32)); /* by size: clang gives an inner map's types no BTF */
	__uint(value_size, sizeof(struct fc_entry));
};

/* ---- maps that each object has, under the same names ---- */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, FC_MAX_SLOTS);
	__type(key, __u32);
	__array(values, struct fc_index);
} fc_indexes SEC(".maps");

/* The slots of a whole disk. Another disk can get its number: by diskseq it is told apart. */
struct fc_disk {
	__u64 slots;
	__u64 diskseq; /* 0: not known */
};
_Static_assert(sizeof(struct fc_disk) == 16, "layout is shared with bpf_maps.py");

/* Whole disk -> the slots that look at it. A disk nobody asked for costs one lookup. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FC_MAX_SLOTS);
	__type(key, __u32);
	__type(value, struct fc_disk);
} fc_disks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FC_MAX_SLOTS);
	__type(key, __u32);
	__type(value, struct fc_stats);
} fc_slot_stats SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u8);
} fc_excluded SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 512 * 1024);
} fc_events SEC(".maps");

/* ---- the index ---- */

/* First position in [lo, hi) whose a is at least key; hi when there is none. */
static __always_inline __u32 fc_lower_bound(void *index, __u32 lo, __u32 hi, __u64 key)
{
	for (__u64 step = 0; step < FC_SEARCH_STEPS && lo < hi; step++) {
		__u32 mid = lo + (hi - lo) / 2;
		struct fc_entry *entry = bpf_map_lookup_elem(index, &mid);

		if (!entry)
			return hi;
		if (entry->a < key)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* Does an interval overlap [first, end)? */
static __always_inline bool fc_intervals_hit(void *index, sector_t first, sector_t end)
{
	__u32 zero = 0;
	struct fc_entry *head = bpf_map_lookup_elem(index, &zero);
	struct fc_entry *entry;
	__u32 lo, hi, at;

	if (!head || !head->b)
		return false;
	lo = 1 + head->a;
	hi = lo + head->b;
	at = fc_lower_bound(index, lo, hi, first + 1);
	if (at >= hi)
		return false;
	entry = bpf_map_lookup_elem(index, &at);
	return entry && entry->b < end;
}

/* ---- what is known of a bio and of its submitter ---- */
static __always_inline __u32 fc_disk_dev(struct block_device *bdev)
{
	return ((__u32)bdev->bd_disk->major << 20) | (__u32)bdev->bd_disk->first_minor;
}

/* Slots of the disk that a bio is for, as a mask. */
static __always_inline __u64 fc_disk_slots(struct block_device *bdev)
{
	__u32 dev = fc_disk_dev(bdev);
	struct fc_disk *disk = bpf_map_lookup_elem(&fc_disks, &dev);

	if (!disk)
		return 0;
	if (disk->diskseq && bpf_core_field_exists(bdev->bd_disk->diskseq) &&
	    bdev->bd_disk->diskseq != disk->diskseq)
		return 0;
	return disk->slots;
}

static __always_inline __u8 fc_bio_dir(unsigned int opf)
{
	__u32 op = opf & FC_REQ_OP_MASK;

	if (op == REQ_OP_READ)
		return FC_READ;
	if (op == REQ_OP_WRITE || op == bpf_core_enum_value(enum req_op, REQ_OP_WRITE_ZEROES))
		return FC_WRITE;
	return FC_OTHER;
}

#define FC_FLAG(opf, kernel_bit, ours)                                                  \
	((bpf_core_enum_value_exists(enum req_flag_bits, kernel_bit) &&                 \
	  ((opf) >> bpf_core_enum_value(enum req_flag_bits, kernel_bit) & 1)) ? (ours) : 0)

static __always_inline __u32 fc_bio_flags(unsigned int opf)
{
	return FC_FLAG(opf, __REQ_SYNC, FC_BIO_SYNC) | FC_FLAG(opf, __REQ_META, FC_BIO_META) |
	       FC_FLAG(opf, __REQ_FUA, FC_BIO_FUA) |
	       FC_FLAG(opf, __REQ_PREFLUSH, FC_BIO_PREFLUSH) |
	       FC_FLAG(opf, __REQ_RAHEAD, FC_BIO_RAHEAD) |
	       FC_FLAG(opf, __REQ_BACKGROUND, FC_BIO_BACKGROUND) |
	       FC_FLAG(opf, __REQ_NOWAIT, FC_BIO_NOWAIT) |
	       FC_FLAG(opf, __REQ_SWAP, FC_BIO_SWAP);
}

static __always_inline __u64 fc_blkcg_id(struct bio *bio)
{
	if (!bpf_core_field_exists(bio->bi_blkg) || !bio->bi_blkg)
		return 0;
	return BPF_CORE_READ(bio, bi_blkg, blkcg, css.cgroup, kn, id);
}

/* Both are zero-padded to FC_COMM_LEN; compared as words, since there is no memcmp. */
static __always_inline bool fc_same_comm(const char *comm, const char *name)
{
	__u64 ours[2], theirs[2];

	__builtin_memcpy(ours, comm, sizeof(ours));
	__builtin_memcpy(theirs, name, sizeof(theirs));
	return ours[0] == theirs[0] && ours[1] == theirs[1];
}

static __always_inline bool fc_is_udev(const char *comm)
{
	return fc_same_comm(comm, "(udev-worker)\0\0\0") ||
	       fc_same_comm(comm, "systemd-udevd\0\0\0");
}

/* comm: the submitting task's name, already read. Helpers that udev runs count as udev. */
static __always_inline __u8 fc_current_class(const char *comm)
{
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct task_struct *task = (void *)bpf_get_current_task();
	char parent[FC_COMM_LEN] = {};

	if (bpf_map_lookup_elem(&fc_excluded, &tgid))
		return FC_EXCLUDED;
	BPF_CORE_READ_STR_INTO(&parent, task, real_parent, comm);
	return fc_is_udev(comm) || fc_is_udev(parent) ? FC_UDEV : FC_WORKLOAD;
}

/* Everything but slot, status, ts_ns and end_io. */
static __always_inline void fc_describe(struct fc_bio_event *event, struct bio *bio,
					sector_t sector)
{
	__u64 id = bpf_get_current_pid_tgid();
	unsigned int opf = bio->bi_opf;

	event->queued_ns = bpf_ktime_get_boot_ns();
	event->sector = sector;
	event->nr_sectors = bio->bi_iter.bi_size >> FC_SECTOR_SHIFT;
	event->dev = fc_disk_dev(bio->bi_bdev);
	event->part_dev = bio->bi_bdev->bd_dev;
	event->cgroup_id = bpf_get_current_cgroup_id();
	event->blkcg_id = fc_blkcg_id(bio);
	event->tgid = id >> 32;
	event->pid = (__u32)id;
	event->flags = fc_bio_flags(opf);
	event->op = opf & FC_REQ_OP_MASK;
	event->dir = fc_bio_dir(opf);
	bpf_get_current_comm(event->comm, sizeof(event->comm));
	event->class = fc_current_class(event->comm);
}

static __always_inline void fc_count(struct fc_stats *stats, __u8 class, __u8 dir, bool failed,
				     __u64 now)
{
	struct fc_class_stats *mine;

	if (class >= FC_CLASSES || dir >= FC_DIRS)
		return;
	mine = &stats->class[class];
	if (!failed) {
		__sync_fetch_and_add(&mine->ok[dir], 1);
		return;
	}
	__sync_fetch_and_add(&mine->failed[dir], 1);
	__sync_val_compare_and_swap(&mine->first_failed_ns, 0, now);
	mine->last_failed_ns = now;
}

/* Hand a copy to user space, or count that it was lost. */
static __always_inline void fc_emit(struct fc_stats *stats, const struct fc_bio_event *event,
				    void *end_io)
{
	struct fc_bio_event *out = bpf_ringbuf_reserve(&fc_events, sizeof(*out), 0);

	if (!out) {
		__sync_fetch_and_add(&stats->lost_events, 1);
		return;
	}
	__builtin_memcpy(out, event, sizeof(*out));
	BPF_SNPRINTF(out->end_io, sizeof(out->end_io), "%ps", end_io);
	bpf_ringbuf_submit(out, 0);
}

#endif
