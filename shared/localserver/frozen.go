package localserver

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// frozenTimeout is how long the kernel may take to stop all threads of a server.
const frozenTimeout = 10 * time.Second

// awaitFrozen returns when no thread of the processes runs any more: on a busy machine a signal takes
// its time, and each thread stops for itself. Where there is no /proc it returns at once.
func awaitFrozen(pids ...int) error {
	for _, pid := range pids {
		for end := time.Now().Add(frozenTimeout); !frozen(pid); time.Sleep(100 * time.Microsecond) {
			if time.Now().After(end) {
				return fmt.Errorf("localserver: process %d goes on after SIGSTOP", pid)
			}
		}
	}
	return nil
}

// frozen says whether every thread of the process is stopped, or ended.
func frozen(pid int) bool {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)) // the pattern is well-formed
	for _, task := range tasks {
		stat, err := os.ReadFile(task)
		if err != nil {
			continue // it has ended
		}
		// The name before it may hold anything.
		after := string(stat[strings.LastIndexByte(string(stat), ')')+1:])
		if state := strings.TrimSpace(after); state != "" && !strings.ContainsRune("TtZX", rune(state[0])) {
			return false
		}
	}
	return true
}
