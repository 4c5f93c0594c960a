package localserver

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// frozenTimeout is how long the kernel may take to stop all threads of a server.
const frozenTimeout = 30 * time.Second

// awaitFrozen returns when no thread of the processes runs any more: on a busy machine a signal takes its time, and
// each thread stops for itself. A process that was just being forked when the others got their signal gets one, too.
// Without /proc it returns at once.
func awaitFrozen(family func() []int) error {
	for end := time.Now().Add(frozenTimeout); ; time.Sleep(time.Millisecond) {
		running := slices.DeleteFunc(family(), frozen)
		if len(running) == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("localserver: processes %v go on after SIGSTOP", running)
		}
		for _, pid := range running {
			syscall.Kill(pid, syscall.SIGSTOP) // the process may have ended meanwhile
		}
	}
}

// frozen reports whether every thread of the process is stopped or has ended.
func frozen(pid int) bool {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)) // the pattern is well-formed
	for _, task := range tasks {
		stat, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		// The name before the last parenthesis may contain anything.
		after := string(stat[strings.LastIndexByte(string(stat), ')')+1:])
		if state := strings.TrimSpace(after); state != "" && !strings.ContainsRune("TtZX", rune(state[0])) {
			return false
		}
	}
	return true
}
