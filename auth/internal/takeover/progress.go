package takeover

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progress reports how far a step is. On a terminal it rewrites one line every second; otherwise it writes a new line
// every 30 s.
type progress struct {
	out      io.Writer
	terminal bool

	mu          sync.Mutex
	step        string
	total, done int64
	begun, told time.Time
	shown       bool // the line is on the terminal
}

func (p *progress) start(step string, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.step, p.total, p.done, p.begun, p.told = step, total, 0, now, now
}

func (p *progress) add(rows int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done += rows
	pause := 30 * time.Second
	if p.terminal {
		pause = time.Second
	}
	now := time.Now()
	if now.Sub(p.told) < pause {
		return
	}
	p.told = now
	if p.terminal {
		fmt.Fprintf(p.out, "\r\x1b[K%s", p.line(now))
		p.shown = true
	} else {
		fmt.Fprintln(p.out, p.line(now))
	}
}

// line returns the text of the report, such as: users 1,240,000 of about 10,000,000, 14,800/s, 9m50s left
func (p *progress) line(now time.Time) string {
	rate := float64(p.done) / max(now.Sub(p.begun).Seconds(), 0.001)
	text := fmt.Sprintf("%s %s", p.step, count(p.done))
	if p.total > p.done {
		text += " of about " + count(p.total)
	}
	text += fmt.Sprintf(", %s/s", count(int64(rate)))
	if p.total > p.done && rate >= 1 {
		text += fmt.Sprintf(", %v left",
			time.Duration(float64(p.total-p.done)/rate*float64(time.Second)).Round(time.Second))
	}
	return text
}

// clear removes the line from the terminal, before something else is written there.
func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.shown = false
	}
}
