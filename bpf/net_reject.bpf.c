/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Packets that are refused: the sender is told by a TCP reset or an ICMP error, as by a
 * firewall or router on the way, and the packet goes no further. A direct-action classifier
 * in an interface's clsact; which packets come here is decided by the filters before it.
 *
 * The packet itself is turned into the answer and goes back where it came from: on egress
 * to the same interface's ingress, on ingress to its egress. A netfilter rule with `reject`
 * in the output hook would give local senders of UDP an EPERM, which no network does.
 *
 * Never answered, but passed on: resets and ICMP unreachables. So no answer makes another one.
 * Never answered, but dropped: other ICMP than echo requests, fragments without a header,
 * multicast and broadcast, IPv4 with options, what is too short.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

struct fc_reject_config {
	__u32 ingress; /* the hook: 0 for packets that leave, 1 for packets that come in */
	__u32 reset;   /* TCP is answered by a reset, else by ICMP as all others are */
	__u8 code4;    /* of ICMP type 3, destination unreachable */
	__u8 code6;    /* of ICMPv6 type 1 */
	__u8 unused[2];
};
_Static_assert(sizeof(struct fc_reject_config) == 12, "layout is shared with net_filter.py");
const volatile struct fc_reject_config fc_reject SEC(".rodata.fc") = {};

#define FC_QUOTE_TCP 20 /* a trimmed packet must keep the field of a checksum still to be filled */
#define FC_QUOTE 8
#define FC_TTL 64
#define FC_LOOPBACK 1 /* lo, in every net namespace (LOOPBACK_IFINDEX) */
/* <linux/icmp.h> wants the C library's headers for sockets. */
#define FC_ICMP_UNREACH 3
#define FC_ICMP_ECHO 8
#define FC_ICMP6_UNREACH 1
#define FC_ICMP6_ECHO 128
#define FC_BROADCAST 0xffffffff
#define FC_FLAG_RST 0x04
#define FC_FLAG_ACK 0x10

struct fc_icmp {
	__u8 type, code;
	__sum16 checksum;
	__be32 unused;
};

struct fc_quote4 {
	struct fc_icmp icmp;
	struct iphdr ip;
	__u8 data[FC_QUOTE_TCP];
};

struct fc_quote6 {
	struct fc_icmp icmp;
	struct ipv6hdr ip;
	__u8 data[FC_QUOTE_TCP];
};

struct fc_pseudo6 {
	struct in6_addr source, destination;
	__be32 length, next;
};

static __always_inline __u16 fc_fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

static __always_inline int fc_back(struct __sk_buff *skb, __u32 l2)
{
	if (l2) {
		struct ethhdr eth;
		__u8 other[ETH_ALEN];

		if (bpf_skb_load_bytes(skb, 0, &eth, sizeof(eth)))
			return TC_ACT_STOLEN;
		__builtin_memcpy(other, eth.h_dest, ETH_ALEN);
		__builtin_memcpy(eth.h_dest, eth.h_source, ETH_ALEN);
		__builtin_memcpy(eth.h_source, other, ETH_ALEN);
		if (bpf_skb_store_bytes(skb, 0, &eth, sizeof(eth), 0))
			return TC_ACT_STOLEN;
	}
	/* On lo it comes back by itself, with its route, without which 127.0.0.1 is martian. */
	if (skb->ifindex == FC_LOOPBACK)
		return TC_ACT_OK;
	return bpf_redirect(skb->ifindex, fc_reject.ingress ? 0 : BPF_F_INGRESS);
}

/* Addresses and ports change places, which no sum notices; the rest is accounted for. */
static __always_inline int fc_reset(struct __sk_buff *skb, __u32 l2, __u32 l4, __u32 addresses,
				    const void *source, const void *destination, __u32 size)
{
	struct tcphdr tcp;
	__be32 seq, ack;
	__be16 word, flags;
	__u32 payload, end = skb->len;

	if (bpf_skb_load_bytes(skb, l4, &tcp, sizeof(tcp)))
		return TC_ACT_STOLEN;
	if (tcp.rst)
		return TC_ACT_OK;
	payload = end - l4 - tcp.doff * 4;
	if (payload > end)
		return TC_ACT_STOLEN;
	seq = tcp.ack ? tcp.ack_seq : 0;
	ack = tcp.ack ? 0 : bpf_htonl(bpf_ntohl(tcp.seq) + payload + tcp.syn + tcp.fin);
	if (bpf_skb_load_bytes(skb, l4 + 12, &word, 2))
		return TC_ACT_STOLEN;
	flags = (word & bpf_htons(0xf000)) | bpf_htons(FC_FLAG_RST | (tcp.ack ? 0 : FC_FLAG_ACK));

	__u32 at = l4 + offsetof(struct tcphdr, check);
	if (bpf_l4_csum_replace(skb, at, tcp.seq, seq, 4) ||
	    bpf_l4_csum_replace(skb, at, tcp.ack_seq, ack, 4) ||
	    bpf_l4_csum_replace(skb, at, word, flags, 2))
		return TC_ACT_STOLEN;
	if (bpf_skb_store_bytes(skb, l4 + 4, &seq, 4, 0) ||
	    bpf_skb_store_bytes(skb, l4 + 8, &ack, 4, 0) ||
	    bpf_skb_store_bytes(skb, l4 + 12, &flags, 2, 0) ||
	    bpf_skb_store_bytes(skb, l4, &tcp.dest, 2, 0) ||
	    bpf_skb_store_bytes(skb, l4 + 2, &tcp.source, 2, 0) ||
	    bpf_skb_store_bytes(skb, addresses, destination, size, 0) ||
	    bpf_skb_store_bytes(skb, addresses + size, source, size, 0))
		return TC_ACT_STOLEN;
	return fc_back(skb, l2);
}

static __always_inline int fc_unreachable4(struct __sk_buff *skb, __u32 l2, struct iphdr *ip,
					   __u32 kept)
{
	const __u32 l4 = l2 + sizeof(*ip);
	struct fc_quote4 quote = {};
	struct iphdr head = {};
	__u32 length = sizeof(quote.icmp) + sizeof(quote.ip) + kept;

	quote.icmp.type = FC_ICMP_UNREACH;
	quote.icmp.code = fc_reject.code4;
	quote.ip = *ip;
	if (bpf_skb_load_bytes(skb, l4, quote.data, kept))
		return TC_ACT_STOLEN;
	quote.icmp.checksum = fc_fold(bpf_csum_diff(NULL, 0, (__be32 *)&quote, length, 0));
	head.version = 4;
	head.ihl = 5;
	head.tot_len = bpf_htons(sizeof(head) + length);
	head.ttl = FC_TTL;
	head.protocol = IPPROTO_ICMP;
	head.saddr = ip->daddr;
	head.daddr = ip->saddr;
	head.check = fc_fold(bpf_csum_diff(NULL, 0, (__be32 *)&head, sizeof(head), 0));

	if (bpf_skb_change_tail(skb, l4 + kept, 0) ||
	    bpf_skb_adjust_room(skb, sizeof(head) + sizeof(quote.icmp), BPF_ADJ_ROOM_MAC, 0) ||
	    bpf_skb_store_bytes(skb, l2, &head, sizeof(head), 0) ||
	    bpf_skb_store_bytes(skb, l2 + sizeof(head), &quote, length, 0))
		return TC_ACT_STOLEN;
	return fc_back(skb, l2);
}

static __always_inline int fc_unreachable6(struct __sk_buff *skb, __u32 l2, struct ipv6hdr *ip,
					   __u32 kept)
{
	const __u32 l4 = l2 + sizeof(*ip);
	struct fc_quote6 quote = {};
	struct ipv6hdr head = {};
	struct fc_pseudo6 pseudo = {};
	__u32 length = sizeof(quote.icmp) + sizeof(quote.ip) + kept;
	__u32 sum;

	quote.icmp.type = FC_ICMP6_UNREACH;
	quote.icmp.code = fc_reject.code6;
	quote.ip = *ip;
	if (bpf_skb_load_bytes(skb, l4, quote.data, kept))
		return TC_ACT_STOLEN;
	head.version = 6;
	head.payload_len = bpf_htons(length);
	head.nexthdr = IPPROTO_ICMPV6;
	head.hop_limit = FC_TTL;
	head.saddr = pseudo.source = ip->daddr;
	head.daddr = pseudo.destination = ip->saddr;
	pseudo.length = bpf_htonl(length);
	pseudo.next = bpf_htonl(IPPROTO_ICMPV6);
	sum = bpf_csum_diff(NULL, 0, (__be32 *)&pseudo, sizeof(pseudo), 0);
	quote.icmp.checksum = fc_fold(bpf_csum_diff(NULL, 0, (__be32 *)&quote, length, sum));

	if (bpf_skb_change_tail(skb, l4 + kept, 0) ||
	    bpf_skb_adjust_room(skb, sizeof(head) + sizeof(quote.icmp), BPF_ADJ_ROOM_MAC, 0) ||
	    bpf_skb_store_bytes(skb, l2, &head, sizeof(head), 0) ||
	    bpf_skb_store_bytes(skb, l2 + sizeof(head), &quote, length, 0))
		return TC_ACT_STOLEN;
	return fc_back(skb, l2);
}

static __always_inline int fc_reject4(struct __sk_buff *skb, __u32 l2)
{
	const __u32 l4 = l2 + sizeof(struct iphdr);
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, l2, &ip, sizeof(ip)))
		return TC_ACT_STOLEN;
	if (ip.ihl != 5 || ip.frag_off & bpf_htons(0x1fff) ||
	    (bpf_ntohl(ip.daddr) >> 28) == 0xe || ip.daddr == bpf_htonl(FC_BROADCAST))
		return TC_ACT_STOLEN;
	if (ip.protocol == IPPROTO_TCP) {
		if (fc_reject.reset)
			return fc_reset(skb, l2, l4, l2 + offsetof(struct iphdr, saddr), &ip.saddr,
					&ip.daddr, sizeof(ip.saddr));
		return fc_unreachable4(skb, l2, &ip, FC_QUOTE_TCP);
	}
	if (ip.protocol == IPPROTO_ICMP) {
		__u8 type;

		if (bpf_skb_load_bytes(skb, l4, &type, 1))
			return TC_ACT_STOLEN;
		if (type == FC_ICMP_UNREACH)
			return TC_ACT_OK;
		if (type != FC_ICMP_ECHO)
			return TC_ACT_STOLEN;
	}
	return fc_unreachable4(skb, l2, &ip, FC_QUOTE);
}

static __always_inline int fc_reject6(struct __sk_buff *skb, __u32 l2)
{
	const __u32 l4 = l2 + sizeof(struct ipv6hdr);
	struct ipv6hdr ip;

	if (bpf_skb_load_bytes(skb, l2, &ip, sizeof(ip)) || ip.daddr.s6_addr[0] == 0xff)
		return TC_ACT_STOLEN;
	if (ip.nexthdr == IPPROTO_TCP) {
		if (fc_reject.reset)
			return fc_reset(skb, l2, l4, l2 + offsetof(struct ipv6hdr, saddr), &ip.saddr,
					&ip.daddr, sizeof(ip.saddr));
		return fc_unreachable6(skb, l2, &ip, FC_QUOTE_TCP);
	}
	if (ip.nexthdr == IPPROTO_ICMPV6) {
		__u8 type;

		if (bpf_skb_load_bytes(skb, l4, &type, 1))
			return TC_ACT_STOLEN;
		if (type == FC_ICMP6_UNREACH)
			return TC_ACT_OK;
		if (type != FC_ICMP6_ECHO)
			return TC_ACT_STOLEN; /* neighbour discovery and the like */
	}
	return fc_unreachable6(skb, l2, &ip, FC_QUOTE);
}

SEC("tc")
int fc_net_reject(struct __sk_buff *skb)
{
	__be16 protocol = 0;
	__u32 l2 = ETH_HLEN;

	/* Devices such as wireguard have no link-layer header. */
	if (bpf_skb_load_bytes(skb, offsetof(struct ethhdr, h_proto), &protocol, 2) ||
	    protocol != skb->protocol)
		l2 = 0;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return fc_reject4(skb, l2);
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return fc_reject6(skb, l2);
	return TC_ACT_STOLEN; /* ARP and others: nobody to tell */
}
