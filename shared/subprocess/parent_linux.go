package subprocess

import "syscall"

// endWithParent has the kernel kill the child when we end in whatever way, a panic or kill -9 included.
// SIGKILL reaches a stopped one too.
func endWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
