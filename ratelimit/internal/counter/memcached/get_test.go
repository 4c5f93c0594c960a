package memcached

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/countertest"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// One connection answers one get after the other, however many keys each has.
func TestGet(t *testing.T) {
	server := testdb.Memcached(t, localserver.MemcachedOptions{})
	peer := newPeer(t, server.Addr())
	conn, err := net.Dial("tcp", server.Addr())
	must.Succeed(t, err)
	defer conn.Close()
	c := newConnection(conn)
	f := func(keys []string, want ...int64) {
		t.Helper()
		totals := make([]int64, len(keys))
		c.begin(time.Now().Add(patience))
		found, err := c.get(keys, totals)
		must.Succeed(t, err)
		wantFound := 0
		for _, n := range want {
			if n != 0 {
				wantFound++
			}
		}
		if !slices.Equal(totals, want) || found != wantFound {
			t.Errorf("%.200q: %v, %d found; want %v, %d", keys, totals, found, want, wantFound)
		}
	}
	f([]string{"a"}, 0)
	for key, value := range map[string]string{"a": "1", "b": "22", "text": "x", "max": "18446744073709551615"} {
		peer.command(key, "set %s 4294967295 0 %d\r\n%s", key, len(value), value)
	}
	f([]string{"a"}, 1)
	f([]string{"none", "b", "nor", "text", "a", "max"}, 0, 22, 0, noNumber, 1, 1<<63-1)
	var keys []string
	var want []int64
	for i := range maxLookupKeys {
		key := strings.Repeat("k", maxKey-3) + fmt.Sprintf("%03d", i)
		peer.command(key, "set %s 0 0 3\r\n%d", key, 100+i)
		keys, want = append(keys, key), append(want, int64(100+i))
	}
	f(keys, want...)
	f([]string{"b", "a"}, 22, 1)
	c.begin(time.Now().Add(patience))
	if err := c.version(); err != nil {
		t.Error(err)
	}
}

func TestReadTotals(t *testing.T) {
	keys := []string{"a", "b", "c"}
	good := func(answer string, want ...int64) {
		t.Helper()
		in := bufio.NewReader(strings.NewReader(answer + "next"))
		totals := make([]int64, len(keys))
		if _, err := readTotals(in, keys, totals); err != nil || !slices.Equal(totals, want) {
			t.Errorf("%.200q: %v, %v; want %v", answer, totals, err, want)
		}
		if rest, _ := io.ReadAll(in); string(rest) != "next" {
			t.Errorf("%.200q leaves %.200q", answer, rest)
		}
	}
	good("END\r\n", 0, 0, 0)
	good("VALUE a 0 1\r\n5\r\nEND\r\n", 5, 0, 0)
	good("VALUE a 0 1 17\r\n5\r\nVALUE c 7 2\r\n66\r\nEND\r\n", 5, 0, 66)
	good("VALUE c 0 1\r\n5\r\nVALUE b 0 1\r\n6\r\nVALUE a 0 1\r\n7\r\nEND\r\n", 7, 6, 5)
	good("VALUE b 0 5\r\nEND\r\n\r\nEND\r\n", 0, noNumber, 0)
	good("VALUE b 0 0\r\n\r\nEND\r\n", 0, noNumber, 0)
	good("VALUE b 0 1048576\r\n"+strings.Repeat("1", maxValue)+"\r\nEND\r\n", 0, noNumber, 0)

	bad := func(answer, want string) {
		t.Helper()
		_, err := readTotals(bufio.NewReader(strings.NewReader(answer)), keys, make([]int64, len(keys)))
		if err == nil || err.Error() != want {
			t.Errorf("%.200q: %v, want %s", answer, err, want)
		}
	}
	const not = "not memcached's answer to a lookup: "
	bad("", "EOF")
	bad("VALUE a 0 1", "EOF")
	bad("VALUE a 0 1\r\n", "the answer ends within a value: unexpected EOF")
	bad("VALUE a 0 1\r\n5\r", "the answer ends within a value: unexpected EOF")
	bad("VALUE a 0 2000\r\n5\r", "the answer ends within a value: unexpected EOF")
	bad("END\n", not+`"END\n" does not end in CRLF`)
	bad("ERROR\r\n", not+`"ERROR", want VALUE or END`)
	bad("SERVER_ERROR out of memory\r\n", not+`"SERVER_ERROR out of memory", want VALUE or END`)
	bad("HTTP/1.1 400 Bad Request\r\n", not+`"HTTP/1.1 400 Bad Request", want VALUE or END`)
	bad("VALUE d 0 1\r\n5\r\nEND\r\n", not+`key "d" was not requested`)
	bad("VALUE a 0 1\r\n5\r\nVALUE a 0 1\r\n5\r\nEND\r\n", not+`key "a" has two values`)
	bad("VALUE a\r\n", not+`"VALUE a": flags "": want a number of at most 32 bits`)
	bad("VALUE a 4294967296 1\r\n", not+`"VALUE a 4294967296 1": flags "4294967296": want a number of at most 32 bits`)
	bad("VALUE a 0 -1\r\n", not+`"VALUE a 0 -1": length "-1": want a number of at most 1048576`)
	bad("VALUE a 0 1048577\r\n", not+`"VALUE a 0 1048577": length "1048577": want a number of at most 1048576`)
	bad("VALUE a 0 1 \r\n", not+`"VALUE a 0 1 ": version "": want a number of at most 64 bits`)
	bad("VALUE a 0 1 1 1\r\n", not+`"VALUE a 0 1 1 1": version "1 1": want a number of at most 64 bits`)
	bad("VALUE a 0 1\r\n55\r\nEND\r\n", not+`a value is followed by "5\r", want CRLF`)
	long := strings.Repeat("x", 200)
	bad(strings.Repeat("x", 512)+"\n", not+`"`+long+`"…, a line of more than 512 bytes`)
	bad(strings.Repeat("x", 1<<20), not+`"`+long+`"…, a line of more than 512 bytes`)
}

// A malformed answer ends its connection, and what follows it there is not taken for the next answer.
func TestNode_malformedAnswer(t *testing.T) {
	l, err := net.Listen("tcp", "localhost:0")
	must.Succeed(t, err)
	defer l.Close()
	go func() {
		for i := 0; ; i++ {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			line, err := bufio.NewReader(conn).ReadString('\n')
			if err != nil || line != "gets a\r\n" {
				t.Errorf("%q, %v; want a gets", line, err)
			}
			answer := "VALUE a 0 1\r\n7\r\nEND\r\n"
			if i == 0 {
				answer = "VALUE b 0 1\r\n1\r\nEND\r\n" + answer
			}
			io.WriteString(conn, answer)
		}
	}()
	s := newTestMemcache(t, patient3([]string{l.Addr().String()}))
	_, err = countertest.Peek(t.Context(), s, "a")
	const want = `not memcached's answer to a lookup: key "b" was not requested`
	if !errors.Is(err, counter.ErrUnavailable) || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("%v, want ErrUnavailable for the key that was not requested", err)
	}
	if got, err := countertest.Peek(t.Context(), s, "a"); got != 7 || err != nil {
		t.Errorf("%d, %v; want 7 over a second connection", got, err)
	}
	if n := s.TotalConns(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
	if st := &s.Stats().Multiget; st.Error.Load() != 1 || st.Success.Load() != 1 {
		t.Errorf("%d errors, %d successes; want one of each", st.Error.Load(), st.Success.Load())
	}
}

// A node that answers bit by bit is left when the time-out is over, however soon the next bit comes.
func TestNode_slowAnswer(t *testing.T) {
	l, err := net.Listen("tcp", "localhost:0")
	must.Succeed(t, err)
	defer l.Close()
	hungUp := make(chan struct{})
	go func() {
		defer close(hungUp)
		conn, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		for err == nil { // until the other end closes
			_, err = io.WriteString(conn, "V")
			time.Sleep(time.Millisecond)
		}
	}()
	const timeout = 100 * time.Millisecond
	s := newTestMemcache(t, Options{Settings: Settings{Nodes: []string{l.Addr().String()}, Timeout: timeout},
		Stall: -1})
	if _, err := countertest.Peek(t.Context(), s, "a"); !errors.Is(err, counter.ErrTimeout) {
		t.Errorf("%v, want ErrTimeout", err)
	}
	select {
	case <-hungUp:
	case <-time.After(patience):
		t.Error("the connection stays")
	}
}

func TestReadTotals_Allocs(t *testing.T) {
	keys, totals := []string{"a", "b", "c"}, make([]int64, 3)
	answer := []byte("VALUE a 4294967295 20 18446744073709551615\r\n18446744073709551615\r\n" +
		"VALUE c 0 2 1\r\n5 \r\nEND\r\n")
	src := bytes.NewReader(answer)
	in := bufio.NewReaderSize(src, 4<<10)
	if n := testing.AllocsPerRun(100, func() {
		src.Reset(answer)
		in.Reset(src)
		if found, err := readTotals(in, keys, totals); found != 2 || err != nil || totals[2] != 5 {
			t.Fatal(found, totals, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations an answer, want 0", n)
	}
}

// FuzzReadTotals compares with a parser that has the whole answer before it.
func FuzzReadTotals(f *testing.F) {
	for _, s := range []string{
		"END\r\n",
		"VALUE a 0 1\r\n5\r\nEND\r\nVALUE",
		"VALUE b 1 3 9\r\n7  \r\nVALUE key_1700000000 0 2 8\r\n10\r\nEND\r\n",
		"VALUE key_1700000000 0 1\r\n1\r\nVALUE a 0 1\r\n2\r\nEND\r\n",
		"VALUE a 0 1\r\n1\r\nVALUE a 0 1\r\n2\r\nEND\r\n",
		"VALUE a 0 5\r\nEND\r\n\r\nEND\r\n",
		"VALUE c 0 1\r\n1\r\nEND\r\n",
		"SERVER_ERROR out of memory\r\n",
		"ERROR\r\n",
		"END\n",
		"VALUE a 0 1048577\r\n1\r\nEND\r\n",
		"VALUE a 0 1025\r\n" + strings.Repeat("1", 1025) + "\r\nEND\r\n",
		"VALUE a 0 1024\r\n1" + strings.Repeat(" ", 1023) + "\r\nEND\r\n",
		"VALUE a 4294967296 1\r\n1\r\n",
		"VALUE a 0 1 x\r\n1\r\n",
		"VALUE  0 1\r\n1\r\nEND\r\n",
		strings.Repeat("1", 600) + "\r\n",
		"VALUE a " + strings.Repeat("0", 480) + " 1\r\n1\r\nEND\r\n",
	} {
		f.Add([]byte(s))
	}
	keys := []string{"a", "key_1700000000", "b"}
	f.Fuzz(func(t *testing.T, answer []byte) {
		want, wantRest, well := referenceTotals(string(answer), keys)
		in := bufio.NewReaderSize(bytes.NewReader(answer), 4<<10)
		got := make([]int64, len(keys))
		found, err := readTotals(in, keys, got)
		if (err == nil) != well {
			t.Fatalf("%q: %v; the reference takes it: %v", answer, err, well)
		}
		if err != nil {
			return
		}
		rest, _ := io.ReadAll(in)
		if len(want) != found || string(rest) != wantRest {
			t.Errorf("%q: %d found, %q left; want %d, %q", answer, found, rest, len(want), wantRest)
		}
		for i, key := range keys {
			if got[i] != want[key] {
				t.Errorf("%q: %s is %d, want %d", answer, key, got[i], want[key])
			}
		}
	})
}

// referenceTotals are the totals of the keys found, and what follows the answer.
func referenceTotals(answer string, keys []string) (totals map[string]int64, rest string, well bool) {
	totals = map[string]int64{}
	for {
		line, after, ended := strings.Cut(answer, "\r\n")
		if !ended || len(line) > maxLine-2 || strings.Contains(line, "\n") {
			return nil, "", false
		}
		if line == "END" {
			return totals, after, true
		}
		words := strings.Split(line, " ")
		if len(words) < 4 || len(words) > 5 || words[0] != "VALUE" || !slices.Contains(keys, words[1]) {
			return nil, "", false
		}
		for i, most := range []uint64{1<<32 - 1, maxValue, 1<<64 - 1}[:len(words)-2] {
			if n, err := strconv.ParseUint(words[2+i], 10, 64); err != nil || n > most {
				return nil, "", false
			}
		}
		size, _ := strconv.Atoi(words[3])
		if _, twice := totals[words[1]]; twice || len(after) < size+2 || after[size:size+2] != "\r\n" {
			return nil, "", false
		}
		total := int64(noNumber)
		if n, err := strconv.ParseUint(strings.TrimRight(after[:size], " "), 10, 64); err == nil && size <= maxNumber {
			total = int64(min(n, 1<<63-1))
		}
		totals[words[1]] = total
		answer = after[size+2:]
	}
}
