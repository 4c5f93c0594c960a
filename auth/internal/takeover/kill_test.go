package takeover_test

import (
	"testing"
	"time"

	"gatehouse/auth/internal/former/formertest"
	"gatehouse/auth/internal/takeover"
	"gatehouse/shared/testdb"
)

// A takeover that is killed after each of its batches, or during each, ends as one that is not disturbed.
func TestKill(t *testing.T) {
	t.Parallel()
	now := time.Now()
	whole := moveAt(t, formertest.Newest, now)
	whole.must(t, takeover.Last)
	want := whole.dump(t)
	f := func(name string, kill func(n int) child) { // n counts the starts
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := moveAt(t, formertest.Newest, now)
			n := 0
			for n = 1; n < 200; n++ {
				c := kill(n)
				if c.Rows = 20; !m.process(t, c) {
					break
				}
			}
			if n < 5 {
				t.Errorf("killed %d times only", n-1)
			}
			t.Logf("killed %d times", n-1)
			if testdb.One[int](t, m.url, "select count(*) from moves where state = 'open'") == 1 {
				m.must(t, takeover.Last)
			}
			same(t, m.dump(t), want)
		})
	}
	// A later pass begins again, so that each start has to go one batch further.
	f("after", func(n int) child { return child{After: n} })
	f("within", func(n int) child { return child{Within: n + 1} })
	f("ahead", func(n int) child { return child{Mode: takeover.Ahead, After: n} })
	f("first pass", func(n int) child {
		return child{Mode: takeover.Ahead, After: min(n, 2) + n/20*20}
	}) // one batch a start
}
