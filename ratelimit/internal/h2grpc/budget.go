package h2grpc

import "time"

// allowance is how many frames and pings that begin no call a client may still send.
type allowance struct {
	budget   budget
	lastPing time.Time
	strikes  int
}

// budget is how many frames that begin no call a connection may still send. It grows with every call and with time.
type budget struct {
	left   int
	filled time.Time
}

const (
	budgetMost      = 2000
	budgetPerCall   = 4
	budgetPerSecond = 200
	longListCost    = 100 // frames that a list of fields of 64 KiB costs: decoding one takes a millisecond
)

func newBudget() budget { return budget{left: budgetMost, filled: time.Now()} }

func (b *budget) earn() {
	if b.left < budgetMost {
		b.left += budgetPerCall
	}
}

func (b *budget) spend() bool {
	if b.left--; b.left > 0 {
		return true
	}
	now := time.Now()
	b.left = min(budgetMost, int(now.Sub(b.filled).Seconds()*budgetPerSecond))
	b.filled = now
	return b.left > 0
}
