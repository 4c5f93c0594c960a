package must

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// fake keeps how it is ended.
type fake struct {
	testing.TB
	end string
}

func (f *fake) Helper() {}

func (f *fake) Fatal(args ...any) { f.end = "failed: " + fmt.Sprint(args...) }

func (f *fake) Skip(args ...any) { f.end += "skipped: " + fmt.Sprint(args...); panic(f) }

func TestMust(t *testing.T) {
	f := func(must func(testing.TB, error), required, want string) {
		t.Helper()
		t.Setenv("REQUIRE_SERVERS", required)
		for _, err := range []error{nil, errors.New("no Redis")} {
			inner := &fake{}
			func() {
				defer func() { recover() }()
				must(inner, err)
			}()
			if err == nil && inner.end != "" || err != nil && inner.end != want {
				t.Errorf("with %v: %q, want %q", err, inner.end, want)
			}
		}
	}
	f(Succeed, "", "failed: no Redis")
	f(Have, "1", "failed: no Redis")
	f(Have, "", "skipped: no Redis")
	root := t.TempDir()
	fetched := func(t testing.TB, err error) {
		if err != nil {
			Fetched(t, root, "redis", err.Error())
		}
	}
	f(fetched, "1", "failed: no Redis")
	f(fetched, "", "skipped: no Redis")
	Succeed(t, os.Mkdir(filepath.Join(root, ".run"), 0o755))
	Succeed(t, os.WriteFile(filepath.Join(root, ".run", "redis-missing"), []byte("no network\n"), 0o644))
	f(fetched, "1", "skipped: no network")
}
