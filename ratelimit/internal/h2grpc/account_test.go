package h2grpc_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"gatehouse/shared/await"
)

const memory16 = 16 << 20 // the least that a server sets aside

// greedy sends the headers of a call and a part of its message.
func (p *peer) greedy(id uint32, announced, sent int) {
	p.t.Helper()
	p.headers(id, false, fields())
	p.data(id, false, []byte{0, byte(announced >> 24), byte(announced >> 16), byte(announced >> 8), byte(announced)})
	for ; sent > 0; sent -= 16000 {
		p.data(id, false, make([]byte, min(sent, 16000)))
	}
}

// TestAccount_messages: where unfinished messages take all memory that is set aside, the connection with most of them
// loses its largest; another's that is smaller, and comes later, is kept, and calls go on.
func TestAccount_messages(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	calm := r.neighbour(t)
	defer calm()
	small := r.dial(t)
	small.greedy(1, 100<<10, 90<<10)
	small.sync(1)
	var peers []*peer
	for range 12 {
		p := r.dial(t)
		p.must(p.framer.WriteWindowUpdate(0, 1<<20))
		p.greedy(1, 3<<20, 48<<10) // 64 KiB are not there: nothing is allocated for the rest
		p.sync(1)
		peers = append(peers, p)
	}
	if n := r.buffered(); n > 12*(128<<10)+(256<<10) {
		t.Errorf("%d KiB for messages of which 48 KiB have come", n>>10)
	}
	for _, p := range peers {
		for range 4 { // now all of it is
			p.data(1, false, make([]byte, 15000))
		}
		p.sync(1)
		if n := r.buffered(); n > memory16 {
			t.Errorf("%d KiB are accounted for", n>>10)
		}
	}
	refused := 0
	for _, p := range peers {
		if got := p.sync(1); got.ended {
			refused++
			if got.get("grpc-status") != "8" || got.get("grpc-message") != "too many unfinished messages" {
				t.Errorf("%v", got)
			}
			p.calls(3)
		}
	}
	if refused < 6 || refused > 8 {
		t.Errorf("%d of 12 messages of 3 MiB gave way", refused)
	}
	small.data(1, false, make([]byte, 5<<10))
	if got := small.sync(1); got.ended || got.reset {
		t.Errorf("the small message gave way: %v", got)
	}
	for _, p := range append(peers, small) {
		p.conn.Close()
	}
	await.True(t, "nothing is kept", func() bool { return r.buffered() == 0 })
}

// TestAccount_blocks: header blocks that do not end are in the account; the connection whose block is largest ends, and
// each block has ten seconds.
func TestAccount_blocks(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	calm := r.neighbour(t)
	defer calm()
	var peers []*peer
	for range 300 { // of 60 KiB each
		p := r.dial(t)
		p.must(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: bytes.Repeat([]byte{0x82}, 15000)}))
		for range 3 {
			p.must(p.framer.WriteContinuation(1, false, bytes.Repeat([]byte{0x82}, 15000)))
		}
		peers = append(peers, p)
	}
	await.True(t, "blocks give way", func() bool { return r.counted(refusals+"buffered") > 0 })
	await.True(t, "the account is within its limit", func() bool { return r.buffered() <= memory16 })
	r.native().TickAt(time.Now().Add(9 * time.Second))
	left := r.native().Conns()
	if left < 150 {
		t.Errorf("%d connections are left before the blocks' time is over", left)
	}
	r.native().TickAt(time.Now().Add(11 * time.Second))
	for _, p := range peers {
		if code, _ := p.gone(); code != http2.ErrCodeEnhanceYourCalm {
			t.Errorf("GOAWAY %v", code)
		}
	}
	await.True(t, "nothing is kept", func() bool { return r.buffered() == 0 })
}

// TestAccount_answers: answers that wait for a window are in the account, and are reset after the time-out.
func TestAccount_answers(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *rigOptions) { o.KeepaliveTimeout = 20 * time.Second })
	calm := r.neighbour(t)
	defer calm()
	p := r.dial(t, window(0))
	const n = 200
	for i := range uint32(n) {
		p.call(2*i + 1)
	}
	p.sync(1)
	if held := r.buffered(); held < n*7 {
		t.Errorf("%d bytes are accounted for", held)
	}
	r.native().TickAt(time.Now().Add(19 * time.Second))
	if got := p.sync(1); got.reset {
		t.Errorf("%v", got)
	}
	p.must(p.framer.WriteWindowUpdate(3, 4)) // a part of one goes: it has its time anew
	p.sync(3)
	r.native().TickAt(time.Now().Add(21 * time.Second))
	for i := range uint32(n) {
		if got := p.response(2*i + 1); !got.reset || got.code != http2.ErrCodeCancel {
			t.Errorf("stream %d: %v", 2*i+1, got)
		}
	}
	r.refused(t, "not_reading", n)
	await.True(t, "nothing is kept", func() bool { return r.buffered() == 0 })
	p.must(p.framer.WriteSettings(window(1000)))
	p.calls(1001)
}

// TestHealth_apart: watches, and compressed calls whose bodies do not come, keep neither health checks nor compressed
// calls of others away, and a connection whose calls are all in the store has its own health checks answered.
func TestHealth_apart(t *testing.T) {
	t.Parallel()
	store := newSlowStore()
	r := newRig(t, func(o *rigOptions) { o.store, o.MaxStreams = store, 64 })
	for range 10 {
		p := r.dial(t)
		for i := range uint32(64) {
			if i%2 == 0 {
				p.headers(2*i+1, false, fields(field(":path", "/grpc.health.v1.Health/Watch")))
				p.data(2*i+1, true, checkHealth())
			} else {
				p.headers(2*i+1, false, fields(field("grpc-encoding", "gzip")))
			}
		}
		p.sync(1)
	}
	if n := r.native().(interface{ Watches() int }).Watches(); n != 160 {
		t.Errorf("%d watches, want 16 of each connection", n)
	}
	check := func(p *peer, id uint32) {
		t.Helper()
		p.headers(id, false, fields(field(":path", "/grpc.health.v1.Health/Check")))
		p.data(id, true, checkHealth())
		if got := p.response(id); got.get("grpc-status") != "0" || !bytes.Equal(got.body, message([]byte{8, 1})) {
			t.Errorf("a health check: %v", got)
		}
	}
	other := r.dial(t)
	check(other, 1)
	for i := range uint32(63) { // all but one of its calls are in the store
		other.call(2*i + 3)
	}
	other.headers(201, false, fields()) // and one is not finished
	other.sync(201)
	check(other, 203)
	other.headers(205, false, fields(field(":path", "/grpc.health.v1.Health/Check")))
	other.sync(205)
	other.data(205, true, checkHealth())
	if got := other.response(205); got.get("grpc-status") != "0" {
		t.Errorf("a health check in two reads: %v", got)
	}
	close(store.gate)
	another := r.dial(t)
	another.headers(1, false, fields(field("grpc-encoding", "gzip")))
	another.data(1, true, zip(rawRequest("d", "k", "v")))
	if got := another.response(1); got.get("grpc-status") != "0" || got.get("grpc-encoding") != "gzip" || got.body[0] != 1 {
		t.Errorf("a compressed call: %v", got)
	}
	if n := r.counted(refusals + "streams"); n < 160 {
		t.Errorf("%d watches were refused", n)
	}
	r.native().TickAt(time.Now().Add(61 * time.Second)) // what has not ended its request is ended
	await.True(t, "unfinished calls are reset", func() bool { return r.counted(refusals+"unfinished") == 321 })
}

// TestRefused_listsPay: a request that is refused pays for the list of fields that was decoded for it.
func TestRefused_listsPay(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := r.dial(t)
	p.must(p.framer.WriteWindowUpdate(0, 1<<20))
	for id := uint32(1); id < 400 && p.goAway == nil; id += 2 {
		p.headers(id, true, append(fields(field("content-type", "text/plain")), bigFields(int(id))...))
		for p.responses[id] == nil && p.next() {
		}
	}
	if len(p.goAway) == 0 || p.goAway[0].ErrCode != http2.ErrCodeEnhanceYourCalm {
		t.Errorf("long lists are free: %q", p.why)
	}
	q := r.dial(t)
	for id := uint32(1); id < 4000; id += 2 { // those of the usual length cost nothing
		q.headers(id, true, fields(field("content-type", "text/plain")))
		if got := q.response(id); got.get(":status") != "415" {
			t.Fatalf("%v", got)
		}
	}
}

// TestEnded: frames of more streams than are remembered do not end the connection.
func TestEnded(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := r.dial(t)
	for id := uint32(1); id < 100; id += 2 {
		p.headers(id, false, fields(field("content-type", "text/plain")))
	}
	p.sync(1)
	for id := uint32(1); id < 100; id += 2 {
		p.headers(id, true, nil) // trailers
	}
	p.calls(101)
}

// bigFields are 48 KiB of fields, of which all but the first refer to HPACK's table.
func bigFields(n int) (all []hpack.HeaderField) {
	for range 16 {
		all = append(all, hpack.HeaderField{Name: "x", Value: strings.Repeat(string(rune('a'+n%26)), 3000)})
	}
	return all
}
