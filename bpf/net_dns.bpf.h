/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * DNS queries: settings, maps, and finding one for a chosen name in a packet (net_dns.bpf.c).
 *
 * A name is chosen by the hash of itself, or of any of its ends at a dot (RFC 1035 wire form,
 * lower case, hashed from its last byte to its first), so that thousands of names cost as
 * much as one. Needs bpf_loop, Linux 5.17.
 */
#ifndef FAULTCTL_NET_DNS_H
#define FAULTCTL_NET_DNS_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/*
 * Between two bounds of a length, so that the compiler makes no other comparison of them.
 * The lower one is 2 or more: verifiers before 6.8 learn nothing from "is not 0".
 */
#define FC_BARRIER(length) asm volatile("" : "+r"(length))

#define FC_DNS_DROP 0
#define FC_DNS_ERROR 1
#define FC_DNS_ANSWER 2
#define FC_DNS_BYTES 112 /* of answers of one type: 7 of A, 4 of AAAA */
#define FC_RECORD_LEAST 16 /* an A record whose name is a pointer */
#define FC_NAME_SELF 1
#define FC_NAME_BELOW 2
#define FC_NAMES 16384
#define FC_NAME_BYTES 256
#define FC_PACKET_BYTES 512 /* bpf_csum_diff takes no more */
#define FC_QUESTION_LEAST 5   /* the root's name, type, class */
#define FC_LOOPBACK 1 /* lo, in every net namespace (LOOPBACK_IFINDEX) */
#define FC_TYPE_A 1
#define FC_TYPE_AAAA 28
#define FC_QR 0x8000
#define FC_RD 0x0100
#define FC_RA 0x0080
#define FC_OPCODE 0x7800
#define FC_HASH_START 0xcbf29ce484222325ULL /* FNV-1a */
#define FC_HASH_PRIME 0x100000001b3ULL

struct fc_dns_config {
	__u32 mode;
	__u32 rcode;
	__u32 everything; /* all names are chosen */
	__u32 bytes_a;    /* of the answer sections, ready made */
	__u32 bytes_aaaa;
	__u16 count_a, count_aaaa;
	__u8 a[FC_DNS_BYTES];
	__u8 aaaa[FC_DNS_BYTES];
};
_Static_assert(sizeof(struct fc_dns_config) == 248, "layout is shared with net_dns.py");
const volatile struct fc_dns_config fc_dns SEC(".rodata.fc") = {};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FC_NAMES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u32);
} fc_dns_names SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} fc_dns_hits SEC(".maps");

/*
 * TCP connections whose queries we have answered. Their server's end is gone; whatever the
 * client still sends is dealt with here.
 */
struct fc_flow {
	struct in6_addr source, destination;
	__be32 ports;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct fc_flow);
	__type(value, __u32);
} fc_dns_taken SEC(".maps");

struct fc_scratch {
	__u8 name[FC_NAME_BYTES];
	__u8 starts[FC_NAME_BYTES]; /* where labels begin */
	__u8 packet[FC_PACKET_BYTES];
	/*
	 * Where the loops are: here and not on the stack, since verifiers before 6.7 look at a
	 * bpf_loop's body once only, and would take what they know of its first round for all.
	 */
	__u32 at, done, left, chosen;
	__u64 hash;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fc_scratch);
} fc_dns_scratch SEC(".maps");

struct dnshdr {
	__be16 id, flags, questions, answers, authorities, additionals;
};

/* Where things are in a packet. */
struct fc_query {
	__u32 l2, l3, l4, dns; /* offsets */
	__u32 name_bytes;      /* with the last, empty label */
	__u32 type;
	__u32 tcp, six;
	struct fc_flow flow;
};

static __always_inline struct fc_scratch *fc_scratch(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&fc_dns_scratch, &zero);
}

/* ---- names ---- */

static long fc_label(__u32 index, void *unused)
{
	struct fc_scratch *scratch = fc_scratch();

	if (!scratch || scratch->at >= FC_NAME_BYTES)
		return 1;
	__u32 at = scratch->at;
	__u8 length = scratch->name[at & 0xff];

	if (length == 0) {
		scratch->done = 1;
		return 1;
	}
	if (length > 63)
		return 1; /* a pointer: not in a question */
	scratch->starts[at & 0xff] = 1;
	scratch->at = at + length + 1;
	return 0;
}

static long fc_end(__u32 index, void *unused)
{
	struct fc_scratch *scratch = fc_scratch();

	if (!scratch || !scratch->left)
		return 1;
	__u32 at = scratch->left - 1;
	__u8 c = scratch->name[at & 0xff];

	scratch->left = at;
	if (c >= 'A' && c <= 'Z')
		c += 'a' - 'A';
	scratch->hash = (scratch->hash ^ c) * FC_HASH_PRIME;
	if (!scratch->starts[at & 0xff])
		return 0;
	__u64 key = scratch->hash;
	__u32 *found = bpf_map_lookup_elem(&fc_dns_names, &key);

	if (found && *found & (at ? FC_NAME_BELOW : FC_NAME_SELF)) {
		scratch->chosen = 1;
		return 1;
	}
	return 0;
}

/* The name's length, 0 when it is not chosen or not a name. */
static __always_inline __u32 fc_chosen(struct __sk_buff *skb, __u32 offset)
{
	struct fc_scratch *scratch = fc_scratch();
	__u32 length = skb->len - offset;

	if (!scratch || offset >= skb->len)
		return 0;
	__builtin_memset(scratch->name, 0, sizeof(scratch->name));
	__builtin_memset(scratch->starts, 0, sizeof(scratch->starts));
	if (length > FC_NAME_BYTES - 1)
		length = FC_NAME_BYTES - 1;
	FC_BARRIER(length);
	if (length < FC_QUESTION_LEAST)
		return 0;
	FC_BARRIER(length);
	if (length > FC_NAME_BYTES - 1 ||
	    bpf_skb_load_bytes(skb, offset, scratch->name, length))
		return 0;
	scratch->at = scratch->done = scratch->chosen = 0;
	bpf_loop(128, fc_label, NULL, 0);
	if (!scratch->done)
		return 0;
	if (fc_dns.everything)
		return scratch->at + 1;
	scratch->left = scratch->at;
	scratch->hash = FC_HASH_START;
	bpf_loop(FC_NAME_BYTES, fc_end, NULL, 0);
	return scratch->chosen ? scratch->at + 1 : 0;
}

/* ---- finding the question ---- */

#define FC_NO 0
#define FC_QUERY 1
#define FC_TAKEN 2 /* of a connection that is ours by now, but no query for a chosen name */

static __always_inline int fc_find_ip(struct __sk_buff *skb, struct fc_query *q)
{
	__be16 protocol = 0;

	q->l2 = ETH_HLEN; /* devices such as wireguard have no link-layer header */
	if (bpf_skb_load_bytes(skb, offsetof(struct ethhdr, h_proto), &protocol, 2) ||
	    protocol != skb->protocol)
		q->l2 = 0;
	q->l3 = q->l2;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, q->l3, &ip, sizeof(ip)) ||
		    ip.frag_off & bpf_htons(0x3fff))
			return 0;
		q->l4 = q->l3 + ip.ihl * 4;
		return ip.protocol;
	}
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, q->l3, &ip, sizeof(ip)))
			return 0;
		q->six = 1;
		q->l4 = q->l3 + sizeof(ip);
		return ip.nexthdr;
	}
	return 0;
}

static __always_inline void fc_flow(struct __sk_buff *skb, struct fc_query *q)
{
	if (q->six)
		bpf_skb_load_bytes(skb, q->l3 + offsetof(struct ipv6hdr, saddr), &q->flow, 32);
	else
		bpf_skb_load_bytes(skb, q->l3 + offsetof(struct iphdr, saddr), &q->flow, 8);
	bpf_skb_load_bytes(skb, q->l4, &q->flow.ports, 4);
}

static __always_inline int fc_find(struct __sk_buff *skb, struct fc_query *q)
{
	int protocol = fc_find_ip(skb, q), other = FC_NO;
	struct dnshdr dns;
	__be16 type;

	if (protocol == IPPROTO_UDP) {
		q->dns = q->l4 + sizeof(struct udphdr);
	} else if (protocol == IPPROTO_TCP) {
		struct tcphdr tcp;

		if (bpf_skb_load_bytes(skb, q->l4, &tcp, sizeof(tcp)))
			return FC_NO;
		fc_flow(skb, q);
		if (tcp.rst || tcp.syn) {
			bpf_map_delete_elem(&fc_dns_taken, &q->flow);
			return FC_NO;
		}
		if (bpf_map_lookup_elem(&fc_dns_taken, &q->flow))
			other = FC_TAKEN;
		q->tcp = 1;
		q->dns = q->l4 + tcp.doff * 4 + 2;
	} else {
		return FC_NO;
	}
	if (bpf_skb_load_bytes(skb, q->dns, &dns, sizeof(dns)) ||
	    dns.flags & bpf_htons(FC_QR | FC_OPCODE) || dns.questions != bpf_htons(1))
		return other;
	q->name_bytes = fc_chosen(skb, q->dns + sizeof(dns));
	if (!q->name_bytes ||
	    bpf_skb_load_bytes(skb, q->dns + sizeof(dns) + q->name_bytes, &type, 2))
		return other;
	q->type = bpf_ntohs(type);

	__u32 zero = 0;
	__u64 *hits = bpf_map_lookup_elem(&fc_dns_hits, &zero);

	if (hits)
		__sync_fetch_and_add(hits, 1);
	return FC_QUERY;
}

#endif
