package must

import (
	"errors"
	"fmt"
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
}
