package must

import (
	"errors"
	"testing"
)

// fake keeps what it is failed with.
type fake struct {
	testing.TB
	failure []any
}

func (f *fake) Helper() {}

func (f *fake) Fatal(args ...any) { f.failure = args }

func TestSucceed(t *testing.T) {
	f := &fake{}
	if Succeed(f, nil); f.failure != nil {
		t.Errorf("no error fails a test: %v", f.failure)
	}
	err := errors.New("broken")
	if Succeed(f, err); len(f.failure) != 1 || f.failure[0] != err {
		t.Errorf("failed with %v, want %v", f.failure, err)
	}
}
