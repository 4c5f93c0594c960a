package subprocess

import "syscall"

// endWithParent makes the kernel kill the child with SIGKILL when this process ends, in whatever way, including a panic
// or kill -9. SIGKILL also ends a child that is stopped.
func endWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
