/* SPDX-License-Identifier: MIT
 *
 * Starts a program of a runtime that brings its own dynamic loader and libraries, so that it
 * runs wherever the runtime's folder lies, on any Linux and without a shell:
 *
 *   R/bin/NAME      a link to this program, which is static
 *   R/libexec/NAME  the real program
 *   R/ld/NAME       a link to the dynamic loader; the process is named by it (proc_pid_comm(5))
 *   R/lib           its libraries
 *
 * Names of the table below are Python modules. The environment is left alone: what a program
 * of the runtime starts on the node runs with the node's own libraries (ld.so(8)).
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const modules[][2] = {
	{ "faultctl", "controller.cli.main" },
	{ "faultd", "nodeagent.main" },
	{ "faultd-pod", "nodeagent.pod" },
};

static char *join(const char *root, const char *folder, const char *name)
{
	char *path;

	if (asprintf(&path, "%s/%s/%s", root, folder, name) < 0)
		exit(126);
	return path;
}

int main(int argc, char **argv)
{
	static char root[PATH_MAX];
	ssize_t size = readlink("/proc/self/exe", root, sizeof(root) - 1);
	const char *name = argc > 0 ? argv[0] : "", *module = NULL, *program;
	char **args, **next;
	unsigned int i;

	for (i = 0; size > 0 && i < 2; i++)
		*(strrchr(root, '/') ?: root) = '\0'; /* R/bin/launch -> R */
	if (strrchr(name, '/'))
		name = strrchr(name, '/') + 1;
	for (i = 0; i < sizeof(modules) / sizeof(modules[0]); i++)
		if (!strcmp(name, modules[i][0]))
			module = modules[i][1];
	program = module ? "python3" : name;
	next = args = calloc(argc + 10, sizeof(*args));
	if (!args || !root[0])
		return 126;
	*next++ = join(root, "ld", name);
	*next++ = "--argv0";
	*next++ = join(root, "bin", program);
	*next++ = "--library-path";
	*next++ = join(root, "lib", "");
	*next++ = join(root, "libexec", program);
	if (module) {
		*next++ = "-s";
		*next++ = "-m";
		*next++ = (char *)module;
	}
	for (i = 1; (int)i < argc; i++)
		*next++ = argv[i];
	execv(args[0], args);
	fprintf(stderr, "%s: %s: %s\n", name, args[0], strerror(errno));
	return 127;
}
