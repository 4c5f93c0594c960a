package subprocess

import "syscall"

// endWithParent has the kernel kill the child when this process ends in whatever way, including a panic or kill -9.
// SIGKILL reaches a stopped child too.
func endWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
