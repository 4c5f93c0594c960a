package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/countertest"
	"gatehouse/ratelimit/internal/counter/link"
	"gatehouse/ratelimit/internal/counter/memory"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

var (
	sliding, bucket = countertest.Sliding, countertest.Bucket
	answer          = countertest.Answer
)

// daily is a hit of a limit that no test's time refills: 86,400 times as slow as it is long.
func daily(h counter.Hit) counter.Hit { h.Window = 86400; return h }

// newSecondStore is a store next to others of the test, whose goroutines are no leak of its own.
func newSecondStore(t *testing.T, o Options) *Server {
	t.Helper()
	s, err := NewServer(t.Context(), o)
	must.Succeed(t, err)
	t.Cleanup(s.Close)
	return s
}

// One call of a script for each key, with runs of equal hits, whichever call they belong to.
func TestBatch_meters(t *testing.T) {
	store := newStubStore(t)
	f := func(want string, requests ...counter.Request) {
		t.Helper()
		b := new(batch)
		for i := range requests {
			c := newCall()
			c.fill(&requests[i], nil, store.hash)
			b.calls = append(b.calls, c)
		}
		b.build(&seenKeys{generation: 10}, 0, func(*call) {})
		got := ""
		for i := range b.ops {
			o := &b.ops[i]
			if o.kind == opMeter {
				got += o.key + "("
				for _, r := range b.meters[o.meter].runs {
					got += fmt.Sprintf(" %d%s%d,%d", r.count, r.kind, r.x, r.y)
				}
				got += " ) "
				continue
			}
			got += fmt.Sprintf("%s:%d ", o.key, o.kind)
		}
		if got != want {
			t.Errorf("commands %s, want %s", got, want)
		}
	}
	r := func(hits ...counter.Hit) counter.Request { return counter.Request{Hits: hits} }
	each := func(hits ...counter.Hit) counter.Request { return counter.Request{Hits: hits, Stop: counter.StopEach} }
	w := func(n uint64) counter.Hit { return sliding("w", n, 10) }
	b := func(n uint64) counter.Hit { return bucket("b", n, 10, 10) }
	f("w( 3h1,10 ) ", r(w(1)), r(w(1)), r(w(1)))
	f("w( 2h1,10 1h2,10 1h1,10 ) ", r(w(1), w(0)), r(w(1)), r(w(2), w(0), w(1)))
	f("w( 1h1,10 2g3,0 1g4294967296,0 1h1,9 ) ",
		r(w(1), refund(w(3)), refund(w(3)), refund(w(1<<40)), sliding("w", 1, 9)))
	f("w( ) ", r(w(0), w(11), w(1<<63-1), refund(w(0))))
	f("b( 2h6000000,0 1g12000000,0 1g60000000,0 ) ", r(b(1), b(0), b(1), refund(b(2)), refund(b(99))))
	f("b( 1h6666666,6 ) ", each(bucket("b", 1, 9, 9)))
	f("b( 1h6000000,0 ) b( 1h6000000,0 ) b( 1h6000000,0 ) ", r(b(1)), r(bucket("b", 1, 10, 20)), r(b(1)))
}

// Calls that go together in one batch get the answers of calls in batches of their own, and those of an in-process
// store that gets the calls one after another: the scripts and their replay agree for all hits, refunds and peeks, on
// fixed windows too.
func TestMeters_coalesced(t *testing.T) {
	kv := testdb.Redis(t)
	clock := new(countertest.Clock)
	s := newTestStore(t, Options{Settings: Settings{URL: kv.URL()}, Stall: -1, Clock: clock.Now})
	peer := redisClient(t, kv.Addr, kv.DB)
	via := s.newLink(patience)
	defer via.close()
	f := func(name string, requests []counter.Request, model counter.Store, forget bool) {
		t.Helper()
		b := new(batch)
		keys := map[string]bool{}
		for i := range requests {
			alone := counter.Request{Now: requests[i].Now}
			for _, h := range requests[i].Hits {
				if h.Algorithm != counter.FixedWindow { // of which peeks are commands of their own
					keys[string(h.Key)] = true
				}
				h.Key = append([]byte("alone "), h.Key...)
				alone.Hits = append(alone.Hits, h)
			}
			must.Succeed(t, s.Add(t.Context(), &alone))
			c := newCall()
			c.fill(&requests[i], nil, s.hash)
			b.calls = append(b.calls, c)
		}
		if forget { // the server forgets the scripts
			must.Succeed(t, peer.Do(t.Context(), peer.B().ScriptFlush().Build()).Error())
		}
		b.build(&s.seen, 0, func(*call) {})
		scripts := 0
		for i := range b.ops {
			if b.ops[i].kind == opMeter {
				scripts++
			}
		}
		if scripts != len(keys) {
			t.Fatalf("%d scripts for %d keys", scripts, len(keys))
		}
		must.Succeed(t, via.send(b))
		b.replay()
		for i, c := range b.calls {
			if b.settle(c); c.err != nil {
				t.Fatal(c.err)
			}
			c.deliver(&requests[i])
			serial := counter.Request{Now: requests[i].Now}
			for _, h := range requests[i].Hits {
				h.After, h.Refused, h.State = 0, false, counter.State{}
				serial.Hits = append(serial.Hits, h)
			}
			must.Succeed(t, model.Add(t.Context(), &serial))
			for j := range serial.Hits {
				got, want := requests[i].Hits[j], serial.Hits[j]
				if answer(&got) != answer(&want) || got.Wait(&got.State, 1) != want.Wait(&want.State, 1) || got.TimeToEmpty(&got.State) != want.TimeToEmpty(&want.State) {
					t.Fatalf("%s, call %d, hit %d %+v: %s, want %s %+v", name, i, j, got, answer(&got), answer(&want),
						want.State)
				}
			}
		}
	}
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 3))
		model := memory.New(memory.Options{Clock: clock.Now})
		instant := int64(1_700_000_000_000_000) + r.Int64N(1e12)
		for round := range 12 {
			clock.Set(instant)
			var requests []counter.Request
			for range 1 + r.IntN(12) {
				requests = append(requests, counter.Request{Hits: mixedHits(r, seed), Now: now()})
			}
			f(fmt.Sprintf("seed %d, round %d", seed, round), requests, model, r.IntN(3) == 0)
			instant += r.Int64N(20_000_000)
		}
	}
}

// mixedHits are hits on five counters, each with numbers of its own; limits of sliding windows may differ.
func mixedHits(r *rand.Rand, seed uint64) (hits []counter.Hit) {
	for range 1 + r.IntN(3) {
		n := []uint64{0, 1, 1, 1, 1, 2, 5, 13, 14, 1 << 50}[r.IntN(10)]
		var h counter.Hit
		switch r.IntN(5) {
		case 0:
			h = sliding(fmt.Sprint("w", seed), n, []uint64{13, 13, 7}[r.IntN(3)])
		case 1:
			h = sliding(fmt.Sprint("v", seed), n, 100)
		case 2:
			h = hit(fmt.Sprint("x", seed), min(n, 14), 100, now()+60)
		case 3:
			h = bucket(fmt.Sprint("b", seed), n, 7, 13)
		default:
			h = bucket(fmt.Sprint("c", seed), n, 13, 13)
		}
		h.Refund = r.IntN(5) == 0 && h.Algorithm != counter.FixedWindow // whose refunds follow the hits of a batch
		hits = append(hits, h)
	}
	return hits
}

// The server forgets its scripts all the time, and two processes with clocks a minute apart count together: no hit is
// lost or counted twice, and twenty pass.
func TestMeters_scriptFlush(t *testing.T) {
	server := testdb.Private(t, localserver.RedisOptions{})
	peer := redisClient(t, server.Addr(), 0)
	o := Options{Settings: Settings{URL: server.Addr()}, Stall: -1}
	stores := []*Server{newTestStore(t, o), newSecondStore(t, o)}
	const perKey = 20
	var done atomic.Bool
	var flusher, wg sync.WaitGroup
	flusher.Go(func() {
		for !done.Load() {
			peer.Do(context.Background(), peer.B().ScriptFlush().Build())
			time.Sleep(5 * time.Millisecond)
		}
	})
	var passed [4]atomic.Int64
	var failed atomic.Int64
	for g := range 16 {
		wg.Go(func() {
			s, skew := stores[g%2], int64(30-60*(g%2))
			for range 50 {
				hits := []counter.Hit{daily(sliding("w", 1, perKey)), daily(bucket("b", 1, perKey, perKey)),
					daily(sliding("wide", 1, 1e6)), daily(bucket("deep", 1, 1e6, 1e6))}
				for _, stop := range []counter.Stop{counter.StopNone, counter.StopAll} {
					part := hits[:2]
					if stop == counter.StopNone {
						part = hits
					}
					req := &counter.Request{Hits: append([]counter.Hit(nil), part...), Now: now() + skew, Stop: stop}
					if err := s.Add(context.Background(), req); err != nil {
						// It forgot them once more between the script's text and its next call.
						if failed.Add(1); !strings.Contains(err.Error(), "the store knows no scripts") {
							t.Error(err)
						}
						continue
					}
					for i := range req.Hits {
						if h := &req.Hits[i]; !h.Refused && !h.Spared {
							passed[i].Add(1)
						}
					}
				}
			}
		})
	}
	wg.Wait()
	done.Store(true)
	flusher.Wait()
	if failed.Load() > 16 {
		t.Errorf("%d of 1600 requests have failed", failed.Load())
	}
	between := func(what string, got, most int64) {
		t.Helper()
		if got > most || got < most-failed.Load() {
			t.Errorf("%s: %d, want %d, less at most %d whose answer is lost", what, got, most, failed.Load())
		}
	}
	between("passed a sliding window", passed[0].Load(), perKey)
	between("passed a token bucket", passed[1].Load(), perKey)
	for i, h := range []counter.Hit{daily(sliding("wide", 0, 1e6)), daily(bucket("deep", 0, 1e6, 1e6))} {
		peek := func() error { return stores[0].Peek(t.Context(), &h) }
		must.Succeed(t, peek())
		between("passed "+string(h.Key), passed[2+i].Load(), 16*50)
		if h.Algorithm == counter.SlidingWindow { // a bucket of a million a day gets a dozen back each second
			between(string(h.Key), h.After, 16*50)
		}
		if h.After > 16*50 {
			t.Errorf("%s stands at %d after %d hits", h.Key, h.After, 16*50)
		}
	}
	immortal(t, peer)
}

// What sliding windows and token buckets leave in Redis expires when they are empty.
func TestMeters_ttl(t *testing.T) {
	kv := testdb.Redis(t)
	peer := redisClient(t, kv.Addr, kv.DB)
	s := newTestStore(t, Options{Settings: Settings{URL: kv.URL()}, JitterMax: 300, Stall: -1})
	ttl := func(h counter.Hit, least, most time.Duration) {
		t.Helper()
		got, err := peer.Do(t.Context(), peer.B().Pttl().Key(string(h.Key)).Build()).AsInt64()
		if err != nil || got < least.Milliseconds() || got > most.Milliseconds() {
			t.Errorf("%s lives for %d ms (%v), want %v to %v", h.Key, got, err, least, most)
		}
	}
	do := func(stop counter.Stop, hits ...counter.Hit) []counter.Hit {
		t.Helper()
		must.Succeed(t, s.Add(t.Context(), &counter.Request{Hits: hits, Now: now(), Stop: stop}))
		return hits
	}
	for i, stop := range []counter.Stop{counter.StopNone, counter.StopAll, counter.StopEach} {
		w, b, d := sliding(fmt.Sprint("w", i), 1, 10), bucket(fmt.Sprint("b", i), 2, 10, 10),
			daily(sliding(fmt.Sprint("d", i), 1, 9))
		slack := patience // of a busy machine
		before := time.Now()
		do(stop, w, b, d)
		took := time.Since(before)
		ttl(w, 60*time.Second-slack, 126*time.Second)
		ttl(b, 12*time.Second-took-slack, 12*time.Second+time.Millisecond)
		ttl(d, 24*time.Hour-slack, 48*time.Hour+300*time.Second)
		// Refunds leave nothing of a counter that is empty, and a peek creates none.
		if stop != counter.StopNone {
			continue
		}
		do(stop, refund(w), refund(b), sliding("looked", 0, 1), bucket("looked too", 0, 1, 1), sliding("never", 11, 10),
			refund(bucket("none", 5, 10, 10)))
		for _, key := range []string{"w0", "b0", "looked", "looked too", "never", "none"} {
			if n, _ := peer.Do(t.Context(), peer.B().Exists().Key(key).Build()).AsInt64(); n != 0 {
				t.Errorf("%s is there", key)
			}
		}
	}
	one := bucket("short", 1, 100, 1)
	one.Window = 1
	do(counter.StopNone, one)
	if keys := immortal(t, peer); keys < 5 {
		t.Errorf("%d keys", keys)
	}
}

// A value of another form fails the calls for that counter alone, and appears in no error or log.
func TestMeters_foreignValue(t *testing.T) {
	kv := testdb.Redis(t)
	peer := redisClient(t, kv.Addr, kv.DB)
	s := newTestStore(t, Options{Settings: Settings{URL: kv.URL()}})
	values := []string{"secret words", "17", "1 2 x", "1 2 3 4", "-1 2 3", "1.5 2 3", " 1 2 3", "1 2 3\n", ""}
	for i, v := range values {
		peer.Do(t.Context(), peer.B().Set().Key(fmt.Sprint("text", i)).Value(v).Build())
	}
	peer.Do(t.Context(), peer.B().Lpush().Key("text9").Element("x").Build())
	peer.Do(t.Context(), peer.B().Set().Key("text10").Value("99999999999 1 2").Build()) // from the future
	peer.Do(t.Context(), peer.B().Set().Key("text11").Value("28333333 99999999999 2").Build())
	f := func(h counter.Hit, sound bool) {
		t.Helper()
		for _, stop := range []counter.Stop{counter.StopNone, counter.StopAll, counter.StopEach} {
			err := s.Add(t.Context(), &counter.Request{Hits: []counter.Hit{h}, Now: now(), Stop: stop})
			if sound != (err == nil) || err != nil &&
				(!errors.Is(err, counter.ErrUnavailable) || strings.Contains(err.Error(), "secret")) {
				t.Errorf("%s, %s, stop %d: %v", h.Key, h.Algorithm, stop, err)
			}
		}
	}
	for range link.BreakerFailures {
		for i := range len(values) + 1 {
			for _, n := range []uint64{0, 1} {
				key := fmt.Sprint("text", i)
				f(sliding(key, n, 10), false)
				f(bucket(key, n, 10, 10), false)
				f(refund(sliding(key, n, 10)), false)
				f(refund(bucket(key, n, 10, 10)), false)
			}
		}
	}
	f(bucket("text10", 1, 10, 10), false) // a window's
	f(sliding("text10", 1, 10), true)
	f(sliding("text11", 0, 10), true) // its window is over
	if s.Open() {
		t.Error("the breaker has opened: the link is sound")
	}
	f(sliding("fine", 1, 10), true)
}

// A server without memory refuses what would be written, and answers what is only read.
func TestMeters_outOfMemory(t *testing.T) {
	server := testdb.Private(t, localserver.RedisOptions{})
	peer := redisClient(t, server.Addr(), 0)
	s := newTestStore(t, Options{Settings: Settings{URL: server.Addr()}, Stall: -1})
	set := func(to string) {
		must.Succeed(t, peer.Do(
			t.Context(), peer.B().ConfigSet().ParameterValue().ParameterValue("maxmemory",
				to).Build()).Error())
	}
	f := func(want string, h counter.Hit) {
		t.Helper()
		for _, stop := range []counter.Stop{counter.StopNone, counter.StopAll} {
			req := counter.Request{Hits: []counter.Hit{h}, Now: now(), Stop: stop}
			got := ""
			if err := s.Add(t.Context(), &req); err != nil {
				got = err.Error()
			} else {
				got = answer(&req.Hits[0])
			}
			if !strings.Contains(got, want) {
				t.Errorf("%s %s, stop %d: %s, want %s", h.Key, h.Algorithm, stop, got, want)
			}
		}
	}
	f("over", sliding("w", 11, 10))
	set("1")
	for _, h := range []counter.Hit{daily(sliding("w", 1, 10)), daily(bucket("b", 1, 10, 10))} {
		f("OOM", h)
		h.N = 0
		f("0", h)
		h.N = 11
		f("11 over", h)
	}
	set("0")
	for _, h := range []counter.Hit{daily(sliding("w", 5, 10)), daily(bucket("b", 5, 10, 10))} {
		req := counter.Request{Hits: []counter.Hit{h}, Now: now()}
		if err := s.Add(t.Context(), &req); err != nil || answer(&req.Hits[0]) != "5" {
			t.Errorf("%s: %s %v, want 5: what was refused has counted", h.Key, answer(&req.Hits[0]), err)
		}
	}
	if s.Open() {
		t.Error("the breaker has opened: the link is sound")
	}
}

// The rights that docs/algorithms.md names are enough, and without the one for the clock hits fail and nothing else.
func TestMeters_acl(t *testing.T) {
	server := testdb.Private(t, localserver.RedisOptions{})
	peer := redisClient(t, server.Addr(), 0)
	user := func(name string, rights ...string) *Server {
		must.Succeed(t, peer.Do(
			t.Context(), peer.B().Arbitrary("ACL", "SETUSER", name, "on", ">pw", "~*", "-@all").Args(rights...).
				Build()).Error())
		return newSecondStore(t, Options{Settings: Settings{URL: server.Addr(), Auth: name + ":pw"}, Stall: -1})
	}
	all := []string{"+ping", "+incrby", "+expire", "+set", "+get", "+eval", "+evalsha", "+time", "+del"}
	hits := func() []counter.Hit {
		return []counter.Hit{sliding("w", 1, 10), bucket("b", 1, 10, 10), refund(sliding("w", 1, 10)),
			refund(bucket("b", 9, 10, 10)), h("f", 1)}
	}
	enough, few := user("enough", all...), user("few", all[:7]...)
	for _, stop := range []counter.Stop{counter.StopNone, counter.StopAll} {
		if err := enough.Add(t.Context(), &counter.Request{Hits: hits(), Now: now(), Stop: stop}); err != nil {
			t.Errorf("stop %d: %v", stop, err)
		}
		if err := few.Add(t.Context(), &counter.Request{Hits: hits(), Now: now(), Stop: stop}); !errors.Is(err,
			counter.ErrUnavailable) {
			t.Errorf("without TIME, stop %d: %v", stop, err)
		}
	}
	add(t, few, now(), h("f", 1))
	if few.Open() {
		t.Error("the breaker has opened: the link is sound")
	}
}

// A replica refuses what would be written; once it is master, the hit counts once.
func TestMeters_readOnly(t *testing.T) {
	master, replica := testdb.Private(t, localserver.RedisOptions{}), testdb.Private(t, localserver.RedisOptions{})
	peer := redisClient(t, replica.Addr(), 0)
	host, port, _ := strings.Cut(master.Addr(), ":")
	become := func(args ...string) {
		if err := peer.Do(t.Context(), peer.B().Arbitrary("REPLICAOF").Args(args...).Build()).Error(); err != nil {
			t.Error(err)
		}
	}
	become(host, port)
	s := newTestStore(t, Options{Settings: Settings{URL: replica.Addr()}, Stall: -1})
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Millisecond)
	defer cancel()
	if err := s.Add(ctx, &counter.Request{Hits: []counter.Hit{daily(sliding("w", 1, 10))}, Now: now()}); err == nil {
		t.Error("a replica has counted")
	}
	time.AfterFunc(20*time.Millisecond, func() { become("NO", "ONE") })
	req := counter.Request{Hits: []counter.Hit{daily(sliding("w", 1, 10)), daily(bucket("b", 1, 10, 10))}, Now: now()}
	err := s.Add(t.Context(), &req)
	for range 100 { // the breaker may have opened meanwhile
		if err == nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
		err = s.Add(t.Context(), &req)
	}
	if err != nil || answer(&req.Hits[0]) != "1" || answer(&req.Hits[1]) != "1" {
		t.Errorf("%v: %s %s, want 1 1", err, answer(&req.Hits[0]), answer(&req.Hits[1]))
	}
}

// What Redis 6 puts around the errors of a script is read like what later ones send.
func TestScriptError(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		if got := scriptError(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	const six = "ERR Error running script (call to f_c2): @user_script:31: @user_script: 31: "
	f(six+"-READONLY You can't write against a read only replica.",
		"READONLY You can't write against a read only replica.")
	f(six+"-OOM command not allowed when used memory > 'maxmemory'.",
		"OOM command not allowed when used memory > 'maxmemory'.")
	f(six+"Write commands not allowed after non deterministic commands. Call redis.replicate_commands()", errReplicate)
	f("READONLY You can't write against a read only replica. script: c2, on @user_script:31.",
		"READONLY You can't write against a read only replica. script: c2, on @user_script:31.")
	f("ERR the value is no sliding window", "ERR the value is no sliding window")
	f(six+"attempt", six+"attempt")
	f("", "")
}

// FuzzMeterAnswer: an answer of a script is a state within the ranges of the arithmetic, or an error.
func FuzzMeterAnswer(f *testing.F) {
	f.Add("1700000 5 2", false)
	f.Add("28333333 10 4294967295", true)
	f.Add("28333333 10 4294967296", true)
	f.Add("-1 0 0", true)
	f.Add("9223372036854775808 1", false)
	f.Add(" 1 2", false)
	f.Fuzz(func(t *testing.T, text string, window bool) {
		m := counter.Meter{Algorithm: counter.TokenBucket, Window: 60, Limit: 10, Burst: 10}
		if window {
			m.Algorithm = counter.SlidingWindow
		}
		s, err := parseState(m.Algorithm, 1_700_000_000_000_000, text)
		if err != nil {
			return
		}
		if s.At < 0 || s.Now != 1_700_000_000_000_000 {
			t.Errorf("%q: %+v", text, s)
		}
		m.Load(&s, s.Now)
		if m.Used(&s) < 0 || m.Wait(&s, 1) < 0 || m.TimeToEmpty(&s) < 0 {
			t.Errorf("%q: %d used, %d, %d", text, m.Used(&s), m.Wait(&s, 1), m.TimeToEmpty(&s))
		}
	})
}
