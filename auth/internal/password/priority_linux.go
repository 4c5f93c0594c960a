package password

import (
	"math"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// lowestPriority is the nice value of threads that get only processor time that is otherwise idle.
const lowestPriority = 19

// separate makes cmd start in a session of its own: signals of a terminal do not reach it, and lowProcess can select
// exactly its threads.
func separate(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// lowProcess lowers the priority of all threads of this process, which must lead a session of its own. Threads that
// start later inherit the priority. Lowering it needs no privilege, but a seccomp filter may refuse it.
//
// The separate session matters as much as the priority. Some kernels divide processor time by session first (autogroup
// in sched(7)), and each PostgreSQL backend is a session. If daemon and child shared a session, the daemon would wait
// for the child: during a flood of sign-ins, the 99th percentile of GET /user was 250 ms. The session's own share of
// processor time is not lowered: with a tenth of a share, a hash of 47 ms took more than ten seconds on a machine that
// other processes kept busy. The scheduling policy SCHED_IDLE gave the same results as nice 19.
func lowProcess() error { return syscall.Setpriority(syscall.PRIO_PGRP, 0, lowestPriority) }

// closeOnExec marks every descriptor above standard error close-on-exec. So a child does not inherit descriptors that
// this process has inherited, such as a socket or a file that its parent left open. Go itself marks the descriptors
// that it opens.
func closeOnExec() error {
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err == nil {
		return nil
	}
	return closeListedOnExec() // for Linux before 5.11, or a seccomp filter that does not know the call
}

func closeListedOnExec() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// hide protects this process's memory from other processes of the same user and from core dumps, and names the process
// for ps and top. It ignores failures, since the daemon's memory is not protected either.
func hide() {
	os.WriteFile("/proc/self/comm", []byte("auth-hashing"), 0) // must come first: it is refused after the next line
	unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}
