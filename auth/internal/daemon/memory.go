package daemon

import (
	"fmt"

	"gatehouse/auth/internal/password"
	"gatehouse/shared/memlimit"
)

// HashMemory returns a warning if all workers together may take more than half of the memory that the process may use;
// "" otherwise.
func HashMemory(p password.Params, workers int) string {
	return hashMemory(p, workers, memlimit.Limit())
}

func hashMemory(p password.Params, workers int, limit int64) string {
	if workers <= 0 {
		workers = password.DefaultWorkers()
	}
	if all := p.Memory() * int64(workers); all > limit/2 {
		return fmt.Sprintf("AUTH_PASSWORD_HASH: %d passwords at once (AUTH_PASSWORD_WORKERS) take %d MiB, more than half of "+
			"the memory limit, %d MiB: the kernel may end the daemon; choose bcrypt, less memory or fewer workers", workers,
			all>>20, limit>>20)
	}
	return ""
}
