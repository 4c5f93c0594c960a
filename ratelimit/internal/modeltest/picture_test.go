package modeltest

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/shared/must"
)

var update = flag.Bool("update", false, "write docs/algorithms.svg instead of comparing it")

// TestDocs_algorithmsPicture compares docs/algorithms.svg with what the model admits: 10 requests a minute, of a caller
// who sends one each second from ten seconds before a window's edge on.
func TestDocs_algorithmsPicture(t *testing.T) {
	const file = "../../docs/algorithms.svg"
	got := picture()
	if *update {
		must.Succeed(t, os.WriteFile(file, []byte(got), 0o644))
		return
	}
	want, err := os.ReadFile(file)
	must.Succeed(t, err)
	if got != string(want) {
		t.Error("docs/algorithms.svg is not what the model admits; go test ./ratelimit/internal/modeltest -run " +
			"Picture -update writes it")
	}
}

// picture draws the requests admitted by each algorithm as dots over time.
func picture() string {
	const first, last = 50, 180 // seconds after a minute's beginning
	x := func(at int) int { return 140 + (at-40)*5 }
	var b strings.Builder
	b.WriteString(
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 190" font-family="sans-serif" font-size="13">` +
			"\n" +
			`<rect width="960" height="190" fill="#fff"/>` + "\n")
	for at := 60; at <= last; at += 60 {
		fmt.Fprintf(&b, `<line x1="%[1]d" y1="20" x2="%[1]d" y2="150" stroke="#bbb"/><text x="%[1]d" y="168" text-anchor="middle">%[2]d:00</text>`+"\n", x(at), at/60)
	}
	for row, l := range []Limit{
		{Algorithm: counter.FixedWindow},
		{Algorithm: counter.SlidingWindow},
		{Algorithm: counter.TokenBucket, Burst: 10},
	} {
		l.Key, l.PerUnit, l.Window = "k", 10, 60
		y := 45 + 40*row
		var m Model
		near := 0 // admitted in the minute around the edge
		fmt.Fprintf(&b, `<text x="10" y="%d">%s</text>`+"\n", y+4, l.Algorithm)
		for at := first; at < last; at++ {
			if m.Request(minute+int64(at)*second, []Ask{{Limits: []Limit{l}, N: 1}})[0].Over {
				continue
			}
			fmt.Fprintf(&b, `<circle cx="%d" cy="%d" r="2.4" fill="#1f6feb"/>`+"\n", x(at), y)
			if at < first+60 {
				near++
			}
		}
		fmt.Fprintf(&b, `<text x="860" y="%d">%d in 1st min</text>`+"\n", y+4, near)
	}
	b.WriteString("</svg>\n")
	return b.String()
}
