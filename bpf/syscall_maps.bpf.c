/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The maps that all programs of system calls share, whichever way those are loaded. No code:
 * so this object needs nothing of the kernel's BTF.
 */
#define FC_MAPS_ONLY
#include "syscall.bpf.h"

FC_LICENSE;
