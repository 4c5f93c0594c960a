package buildinfo

import (
	"runtime"
	"strings"
	"testing"
)

func TestVersion(t *testing.T) {
	got := Version("daemon")
	if !strings.HasPrefix(got, "daemon ") || !strings.HasSuffix(got, runtime.Version()+")") {
		t.Error(got)
	}
	if r := Release(); r == "" || strings.HasPrefix(r, "v") {
		t.Error(r)
	}
}
