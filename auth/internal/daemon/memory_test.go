package daemon

import (
	"math"
	"strings"
	"testing"

	"gatehouse/auth/internal/password"
)

func TestHashMemory(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		hash    string
		workers int
		limit   int64
		want    string
	}{
		{"bcrypt:10", 16, 64 << 20, ""},
		{"argon2id:19456,2,1", 1, 64 << 20, ""},
		{"argon2id:19456,2,1", 2, 64 << 20, "2 passwords at once (AUTH_PASSWORD_WORKERS) take 38 MiB"},
		{"argon2id:262144,1,1", 1, math.MaxInt64, ""},
		{"argon2id:19456,2,1", 0, 20 << 20, "more than half of the memory limit, 20 MiB"},
	} {
		p, err := password.ParseParams(test.hash)
		if err != nil {
			t.Fatal(err)
		}
		got := hashMemory(p, test.workers, test.limit)
		if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s, %d workers, %d: %q, want %q", test.hash, test.workers, test.limit, got, test.want)
		}
	}
}
