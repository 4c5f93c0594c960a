package takeover_test

import (
	"testing"

	"gatehouse/auth/internal/former/formertest"
	"gatehouse/auth/internal/takeover"
)

func TestRun(t *testing.T) {
	t.Parallel()
	for _, release := range []formertest.Release{formertest.Newest, formertest.Oldest} {
		m := newMove(t, release)
		o := m.must(t, takeover.Last)
		t.Log(o.out, o.log)
	}
}
