/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * DNS queries for chosen names: no answer, or one that we make, at once and without a server.
 * A classifier on the egress of an interface's clsact; only packets to a DNS port come here.
 * What does not ask for a chosen name goes on, unread by anybody else and unchanged.
 *
 * The query itself is turned into the answer and comes back by the interface's ingress. Over
 * TCP a query is seen when a segment begins with it, as all common resolvers send it; the
 * server, which never gets to see that segment, is told by a reset that the connection is over,
 * and the client goes on with us.
 */
#include "net_dns.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* ---- answering ---- */

static __always_inline int fc_swap(struct __sk_buff *skb, __u32 at, __u32 size)
{
	__u8 both[2 * sizeof(struct in6_addr)];

	if (bpf_skb_load_bytes(skb, at, both, 2 * size) ||
	    bpf_skb_store_bytes(skb, at, both + size, size, 0) ||
	    bpf_skb_store_bytes(skb, at + size, both, size, 0))
		return -1;
	return 0;
}

/* Ends of all layers change places, which no sum notices. */
static __always_inline int fc_turn(struct __sk_buff *skb, struct fc_query *q)
{
	int failed;

	if (q->six)
		failed = fc_swap(skb, q->l3 + offsetof(struct ipv6hdr, saddr), 16);
	else
		failed = fc_swap(skb, q->l3 + offsetof(struct iphdr, saddr), 4);
	if (failed || fc_swap(skb, q->l4, 2) || (q->l2 && fc_swap(skb, 0, ETH_ALEN)))
		return TC_ACT_STOLEN;
	/* On lo it comes back by itself, with its route, without which 127.0.0.1 is martian. */
	return skb->ifindex == FC_LOOPBACK ? TC_ACT_OK : bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/* A field of a header below a sum over it, changed together with that sum. */
static __always_inline int fc_set(struct __sk_buff *skb, __u32 sum, __u32 at, const void *value,
				  __u32 size, __u64 flags)
{
	__be32 old = 0, now = 0;

	if (bpf_skb_load_bytes(skb, at, &old, size))
		return -1;
	__builtin_memcpy(&now, value, size);
	if (bpf_l4_csum_replace(skb, sum, old, now, size | flags))
		return -1;
	return bpf_skb_store_bytes(skb, at, value, size, 0);
}

static __always_inline __be16 fc_flags(__be16 asked, __u32 rcode)
{
	return (asked & bpf_htons(FC_RD)) | bpf_htons(FC_QR | FC_RA | rcode);
}

/*
 * The server's end of a TCP connection gets a reset in the place of the query, and the query
 * is made the next segment of the server's side. first: bytes of the first question with its
 * length, when only that is answered; 0 for all that is in the segment.
 */
static __always_inline int fc_take_over(struct __sk_buff *skb, struct fc_query *q, __u32 first)
{
	__u32 sum = q->l4 + offsetof(struct tcphdr, check);
	struct tcphdr tcp;
	__be16 word, flags;
	__be32 ack, no_options = 0x01010101;
	__u32 taken;

	if (bpf_skb_load_bytes(skb, q->l4, &tcp, sizeof(tcp)) ||
	    bpf_skb_load_bytes(skb, q->l4 + 12, &word, 2))
		return -1;
	flags = (word & bpf_htons(0xf000)) | bpf_htons(0x14); /* RST, ACK */
	if (!bpf_map_lookup_elem(&fc_dns_taken, &q->flow)) {
		__u32 yes = 1;

		if (fc_set(skb, sum, q->l4 + 12, &flags, 2, 0) ||
		    bpf_clone_redirect(skb, skb->ifindex, 0) ||
		    bpf_map_update_elem(&fc_dns_taken, &q->flow, &yes, BPF_ANY))
			return -1;
	}
	flags = (word & bpf_htons(0xf000)) | bpf_htons(0x18); /* PSH, ACK */
	taken = skb->len - q->l4 - tcp.doff * 4;
	if (first && first < taken)
		taken = first; /* what follows comes again, as a segment of its own */
	ack = bpf_htonl(bpf_ntohl(tcp.seq) + taken);
	if (fc_set(skb, sum, q->l4 + 12, &flags, 2, 0) ||
	    fc_set(skb, sum, q->l4 + 4, &tcp.ack_seq, 4, 0) ||
	    fc_set(skb, sum, q->l4 + 8, &ack, 4, 0))
		return -1;
	/* The client's own time stamps would be too old, or too new, for it (PAWS, RFC 7323). */
#pragma unroll
	for (int i = 5; i < 15; i++) {
		if (i >= tcp.doff)
			break;
		if (fc_set(skb, sum, q->l4 + i * 4, &no_options, 4, 0))
			return -1;
	}
	return 0;
}

/* What else a client sends on a connection that is ours: its end, or another question. */
static __always_inline int fc_later(struct __sk_buff *skb, struct fc_query *q)
{
	__u32 sum = q->l4 + offsetof(struct tcphdr, check);
	struct tcphdr tcp;
	__be16 word, flags;
	__be32 none = 0;

	if (bpf_skb_load_bytes(skb, q->l4, &tcp, sizeof(tcp)) ||
	    bpf_skb_load_bytes(skb, q->l4 + 12, &word, 2))
		return TC_ACT_STOLEN;
	if (!tcp.fin && skb->len <= q->l4 + tcp.doff * 4)
		return TC_ACT_STOLEN; /* it only acknowledges */
	flags = (word & bpf_htons(0xf000)) | bpf_htons(0x04); /* RST */
	if (fc_set(skb, sum, q->l4 + 12, &flags, 2, 0) ||
	    fc_set(skb, sum, q->l4 + 4, &tcp.ack_seq, 4, 0) ||
	    fc_set(skb, sum, q->l4 + 8, &none, 4, 0))
		return TC_ACT_STOLEN;
	return fc_turn(skb, q);
}

static __always_inline int fc_error(struct __sk_buff *skb, struct fc_query *q)
{
	__u32 sum = q->l4 + (q->tcp ? offsetof(struct tcphdr, check) : offsetof(struct udphdr, check));
	__u64 how = q->tcp ? 0 : BPF_F_MARK_MANGLED_0;
	__u32 at = q->dns;

	if (q->tcp && fc_take_over(skb, q, 0))
		return TC_ACT_STOLEN;
	/* Some send the questions for A and AAAA in one segment. */
#pragma unroll
	for (int i = 0; i < 2; i++) {
		__be16 flags, length;

		if (bpf_skb_load_bytes(skb, at + 2, &flags, 2))
			break;
		flags = fc_flags(flags, fc_dns.rcode);
		if (fc_set(skb, sum, at + 2, &flags, 2, how))
			return TC_ACT_STOLEN;
		if (!q->tcp || bpf_skb_load_bytes(skb, at - 2, &length, 2))
			break;
		at += 2 + bpf_ntohs(length);
	}
	return fc_turn(skb, q);
}

struct fc_pseudo {
	struct in6_addr source, destination;
	__be32 length, next;
};

/* The sum over pseudo header and all from the transport header on, which is less than 512 bytes. */
static __always_inline int fc_sum(struct __sk_buff *skb, struct fc_query *q)
{
	struct fc_scratch *scratch = fc_scratch();
	struct fc_pseudo pseudo = {};
	__u32 length = skb->len - q->l4;
	__u32 at = q->l4 + (q->tcp ? offsetof(struct tcphdr, check) : offsetof(struct udphdr, check));
	__be16 sum = 0;
	__u64 total;

	if (!scratch || bpf_skb_store_bytes(skb, at, &sum, 2, 0))
		return -1;
	__builtin_memset(scratch->packet, 0, sizeof(scratch->packet));
	FC_BARRIER(length);
	if (length < sizeof(struct udphdr))
		return -1;
	FC_BARRIER(length);
	if (length >= FC_PACKET_BYTES ||
	    bpf_skb_load_bytes(skb, q->l4, scratch->packet, length))
		return -1;
	pseudo.length = bpf_htonl(length);
	pseudo.next = bpf_htonl(q->tcp ? IPPROTO_TCP : IPPROTO_UDP);
	if (q->six ? bpf_skb_load_bytes(skb, q->l3 + offsetof(struct ipv6hdr, saddr), &pseudo, 32)
		   : bpf_skb_load_bytes(skb, q->l3 + offsetof(struct iphdr, saddr), &pseudo, 8))
		return -1;
	total = bpf_csum_diff(NULL, 0, (__be32 *)&pseudo, sizeof(pseudo), 0);
	total = bpf_csum_diff(NULL, 0, (__be32 *)scratch->packet, FC_PACKET_BYTES, total);
	total = (total & 0xffff) + (total >> 16);
	total = (total & 0xffff) + (total >> 16);
	sum = ~total;
	if (!sum)
		sum = 0xffff;
	return bpf_skb_store_bytes(skb, at, &sum, 2, 0);
}

/* Lengths of the layers above a packet that has a new end. */
static __always_inline int fc_lengths(struct __sk_buff *skb, struct fc_query *q)
{
	__be16 length = bpf_htons(skb->len - q->l4), old;

	if (!q->tcp && bpf_skb_store_bytes(skb, q->l4 + offsetof(struct udphdr, len), &length, 2, 0))
		return -1;
	if (q->tcp) {
		__be16 message = bpf_htons(skb->len - q->dns);

		if (bpf_skb_store_bytes(skb, q->dns - 2, &message, 2, 0))
			return -1;
	}
	if (q->six)
		return bpf_skb_store_bytes(skb, q->l3 + offsetof(struct ipv6hdr, payload_len), &length,
					   2, 0);
	length = bpf_htons(skb->len - q->l3);
	if (bpf_skb_load_bytes(skb, q->l3 + offsetof(struct iphdr, tot_len), &old, 2) ||
	    bpf_l3_csum_replace(skb, q->l3 + offsetof(struct iphdr, check), old, length, 2))
		return -1;
	return bpf_skb_store_bytes(skb, q->l3 + offsetof(struct iphdr, tot_len), &length, 2, 0);
}

static __always_inline int fc_answer(struct __sk_buff *skb, struct fc_query *q)
{
	__u32 end = q->dns + sizeof(struct dnshdr) + q->name_bytes + 4;
	const volatile void *answers = fc_dns.a;
	struct dnshdr dns;
	__be16 length;
	__u32 bytes = 0, count = 0;

	if (q->tcp && (bpf_skb_load_bytes(skb, q->dns - 2, &length, 2) ||
		       fc_take_over(skb, q, 2 + bpf_ntohs(length))))
		return TC_ACT_STOLEN;
	if (q->type == FC_TYPE_A) {
		bytes = fc_dns.bytes_a;
		count = fc_dns.count_a;
	} else if (q->type == FC_TYPE_AAAA) {
		bytes = fc_dns.bytes_aaaa;
		count = fc_dns.count_aaaa;
		answers = fc_dns.aaaa;
	}
	if (bpf_skb_load_bytes(skb, q->dns, &dns, sizeof(dns)))
		return TC_ACT_STOLEN;
	dns.flags = fc_flags(dns.flags, 0);
	dns.answers = bpf_htons(count);
	dns.authorities = dns.additionals = 0;
	if (bpf_skb_change_tail(skb, end + bytes, 0) ||
	    bpf_skb_store_bytes(skb, q->dns, &dns, sizeof(dns), 0))
		return TC_ACT_STOLEN;
	FC_BARRIER(bytes);
	if (bytes >= FC_RECORD_LEAST) {
		FC_BARRIER(bytes);
		if (bytes > FC_DNS_BYTES ||
		    bpf_skb_store_bytes(skb, end, (const void *)answers, bytes, 0))
			return TC_ACT_STOLEN;
	}
	if (fc_lengths(skb, q) || fc_sum(skb, q))
		return TC_ACT_STOLEN;
	return fc_turn(skb, q);
}

/* Decides by itself: drops, or answers. */
SEC("tc")
int fc_net_dns(struct __sk_buff *skb)
{
	struct fc_query q = {};

	int found = fc_find(skb, &q);

	if (found == FC_NO)
		return TC_ACT_UNSPEC;
	if (found == FC_TAKEN)
		return fc_later(skb, &q);
	if (fc_dns.mode == FC_DNS_ERROR)
		return fc_error(skb, &q);
	if (fc_dns.mode == FC_DNS_ANSWER)
		return fc_answer(skb, &q);
	return TC_ACT_STOLEN;
}

/* Only says whether a packet asks for a chosen name; the filter's action does the rest. */
SEC("tc")
int fc_net_dns_match(struct __sk_buff *skb)
{
	struct fc_query q = {};

	return fc_find(skb, &q) == FC_QUERY ? -1 : 0;
}
