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

// frozenTimeout bounds the time that the kernel may take to stop all threads of a server.
const frozenTimeout = 30 * time.Second

// awaitFrozen returns when SIGSTOP has stopped all threads of all processes that family returns. On a busy machine this
// takes some time, since each thread stops on its own. A process that was being forked while the others got the signal
// gets one now. On systems without /proc, awaitFrozen returns at once.
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
			syscall.Kill(pid, syscall.SIGSTOP) // an error means that the process has ended meanwhile
		}
	}
}

// frozen reports whether all threads of a process are stopped or have ended.
func frozen(pid int) bool {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)) // the pattern is valid: no error
	for _, task := range tasks {
		stat, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		// The state follows the last parenthesis; the process's name before it may contain anything.
		after := string(stat[strings.LastIndexByte(string(stat), ')')+1:])
		if state := strings.TrimSpace(after); state != "" && !strings.ContainsRune("TtZX", rune(state[0])) {
			return false
		}
	}
	return true
}
