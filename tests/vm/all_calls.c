/* SPDX-License-Identifier: MIT */
/*
 * Makes one call of each kind at every SIGUSR1, by the plain instruction, and stores the
 * errnos in a mapped file, so that no tested call is needed to tell of them. An end of
 * file, or an address of 0, is 1000.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

#define PAGE 4096
#define ARENA 512

static long raw(long nr, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
	long result;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}

#define CALL(nr, ...) CALL_(nr, __VA_ARGS__, 0, 0, 0, 0, 0, 0)
#define CALL_(nr, a, b, c, d, e, f, ...) \
	raw(nr, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
#define TELL(name, result) at += sprintf(at, ", \"" name "\": %ld", code(result))

static long code(long result)
{
	return result < 0 ? -result : 0;
}


int main(int argc, char **argv)
{
	int out = open(argv[1], O_RDWR | O_CREAT, 0600), file, pipes[2], pair[2], sock, sig;
	char *text, *arena, buffer[64] = "x";
	struct timespec spec = { 0, 1000 };
	long turn = 0, made;
	struct timeval now;
	sigset_t set;

	ftruncate(out, PAGE);
	text = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, out, 0);
	arena = mmap(0, ARENA * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	file = open("/tmp/all-calls-file", O_RDWR | O_CREAT, 0600);
	write(file, "12345678", 8);
	pipe(pipes);
	socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
	send(pair[0], "x", 1, 0);
	sock = socket(AF_UNIX, SOCK_STREAM, 0);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, 0);
	write(1, "ready\n", 6);
	for (;;) {
		char next[PAGE] = "", *at = next;
		long result;

		sigwait(&set, &sig);
		turn++;
		at += sprintf(at, "{\"turn\": %ld", turn);
		lseek(file, 0, SEEK_SET);
		result = CALL(SYS_read, file, buffer, 1);
		TELL("read", result ? result : -1000);
		TELL("pread64", CALL(SYS_pread64, file, buffer, 1, 0));
		TELL("write", CALL(SYS_write, file, "x", 1));
		TELL("pwrite64", CALL(SYS_pwrite64, file, "x", 1, 0));
		TELL("fsync", CALL(SYS_fsync, file));
		result = CALL(SYS_openat, AT_FDCWD, "/tmp/all-calls-file", O_RDONLY);
		TELL("openat", result);
		made = CALL(SYS_eventfd2, 0, 0);
		TELL("close", CALL(SYS_close, made));
		TELL("dup", CALL(SYS_dup, file));
		TELL("getrandom", CALL(SYS_getrandom, buffer, 1, 0));
		TELL("gettimeofday", CALL(SYS_gettimeofday, &now, 0));
		TELL("ioctl", CALL(SYS_ioctl, pipes[0], FIONREAD, &sig));
		TELL("recvfrom", CALL(SYS_recvfrom, pair[1], buffer, 1, MSG_PEEK | MSG_DONTWAIT));
		TELL("sendto", CALL(SYS_sendto, pair[0], "x", 1, MSG_DONTWAIT));
		TELL("nanosleep", CALL(SYS_nanosleep, &spec, 0));
		result = CALL(SYS_fork, 0);
		if (!result)
			CALL(SYS_exit_group, 0);
		if (result > 0)
			CALL(SYS_wait4, result, 0, 0, 0);
		TELL("fork", result);
		TELL("clock_gettime", CALL(SYS_clock_gettime, 0, &spec));
		spec.tv_sec = 0;
		spec.tv_nsec = 1000;
		TELL("setns", CALL(SYS_setns, -1, 0));
		TELL("prlimit64", CALL(SYS_prlimit64, 0, RLIMIT_CORE, 0, buffer));
		TELL("socket", CALL(SYS_socket, AF_UNIX, SOCK_STREAM, 0));
		TELL("mmap", CALL(SYS_mmap, 0, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
		result = CALL(SYS_brk, 0);
		TELL("brk", result ? result : -1000);
		TELL("mlock", CALL(SYS_mlock, arena, PAGE));
		TELL("bind", CALL(SYS_bind, sock, buffer, 1));
		/* far enough to be asked about: the type is looked up last */
		TELL("mount", CALL(SYS_mount, "none", "/tmp", "no-such-fs", 0, 0));
		TELL("mprotect", CALL(SYS_mprotect, arena, PAGE, PROT_READ));
		TELL("swapon", CALL(SYS_swapon, 0, 0));
		TELL("swapoff", CALL(SYS_swapoff, 0));
		TELL("munmap", CALL(SYS_munmap, arena + (turn % (ARENA - 1) + 1) * PAGE, PAGE));
		sprintf(at, "}\n");
		memcpy(text, next, PAGE); /* zeros too: nothing is left of a longer one */
	}
}
