package stats

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cactus/go-statsd-client/v5/statsd"
)

// transport sends lines to statsd over UDP or TCP. Its method Send never waits.
type transport interface {
	statsd.Sender
	ready() bool
	flush()
	awake(ctx context.Context) bool
	drain(ctx context.Context) error // sends the queued lines, then closes
}

// Statsd is a Sink that sends lines to statsd. Plain lines are `name:1|c`, `name:1|g`, `name:0.25|ms`, with EXTRA_TAGS
// in the name. Tagged lines have the tags after the value, as DogStatsD reads them: `name:1|c|#az:b,ver:1_2`.
type Statsd struct {
	out        transport
	lines      statsd.StatSender
	tagged     bool
	mogrifiers []Mogrifier // turn parts of names into tags, in tagged lines
}

// NewStatsd returns a Sink that sends plain lines to addr. If network is udp, it sends datagrams of at most 1432 bytes,
// whose arrival is not confirmed. If network is tcp, it keeps one connection, which is made in the background and made
// again when it breaks. While statsd is unreachable or does not read, counts are kept and no request waits.
func NewStatsd(network, addr string, log *slog.Logger) *Statsd {
	if network == "udp" {
		return newStatsd(newUDP(addr, log))
	}
	return newStatsd(newTCP(addr, log))
}

// NewTagged is NewStatsd for tagged lines. m rewrites their names.
func NewTagged(network, addr string, m []Mogrifier, log *slog.Logger) *Statsd {
	s := NewStatsd(network, addr, log)
	s.tagged, s.mogrifiers = true, m
	return s
}

func newStatsd(out transport) *Statsd {
	client, err := statsd.NewClientWithSender(out, "", 0)
	if err != nil {
		panic(err) // the only error is a nil sender
	}
	// Pass every sample: the timers have sampled already, so the client library must not do so again.
	lines := client.NewSubStatter("")
	lines.SetSamplerFunc(func(float32) bool { return true })
	return &Statsd{out: out, lines: lines}
}

// Ready implements Sink.
func (s *Statsd) Ready() bool { return s.out.ready() }

// Count implements Sink.
func (s *Statsd) Count(m Series, delta uint64) bool {
	name, tags := s.name(m)
	return s.lines.Inc(name, int64(min(delta, math.MaxInt64)), 1, tags...) == nil
}

// Gauge implements Sink. A negative value is sent after a 0, because a plain statsd takes a value with a leading minus
// as a decrease.
func (s *Statsd) Gauge(m Series, value int64) bool {
	name, tags := s.name(m)
	if value < 0 && !s.tagged && s.lines.Gauge(name, 0, 1) != nil {
		return false
	}
	return s.lines.Gauge(name, value, 1, tags...) == nil
}

// Time implements Sink. In plain lines, a value that is a whole number of milliseconds has no decimal point.
func (s *Statsd) Time(m Series, d time.Duration, rate float64) bool {
	name, tags := s.name(m)
	value := milliseconds(d)
	if !s.tagged {
		value = strings.TrimSuffix(value, ".000000")
	}
	return s.lines.Raw(name, value+"|ms", float32(rate), tags...) == nil
}

// Flush implements Sink.
func (s *Statsd) Flush() { s.out.flush() }

// Awake implements Sink.
func (s *Statsd) Awake(ctx context.Context) bool { return s.out.awake(ctx) }

// Close implements Sink.
func (s *Statsd) Close(ctx context.Context) error { return s.out.drain(ctx) }

// milliseconds returns a duration as a number of milliseconds with six decimals.
func milliseconds(d time.Duration) string {
	return strconv.FormatFloat(float64(d)/float64(time.Millisecond), 'f', 6, 64)
}

// name returns a series' name in the form for a line, and the tags that follow the value. In tagged lines, the first of
// s.mogrifiers that matches rewrites the name and adds its tags after the series' own.
func (s *Statsd) name(m Series) (string, []statsd.Tag) {
	if !s.tagged {
		return m.Plain(), nil
	}
	tags := make([]statsd.Tag, 0, len(m.Tags)+4)
	for _, tag := range m.Tags {
		tags = append(tags, statsd.Tag{tag.Name, tag.Value})
	}
	for i := range s.mogrifiers {
		if name, more, ok := s.mogrifiers[i].apply(m.Name); ok {
			for _, tag := range more {
				tags = append(tags, statsd.Tag{tag.Name, tag.Value})
			}
			return name, tags
		}
	}
	return m.Name, tags
}

// Mogrifier rewrites metric names that match a regular expression, and makes tags of the expression's groups.
type Mogrifier struct {
	pattern *regexp.Regexp
	name    string
	tags    []Tag
}

// NewMogrifier returns a Mogrifier for a regular expression, which matches anywhere in a name unless it has anchors.
// name is the new name; tags has the form "k:v,k2:v2", in the order of the output. In name and in the tags' values, $0
// stands for the whole match, and $1 and so on for the expression's groups; numbers without a group stay as they are.
func NewMogrifier(pattern, name, tags string) (Mogrifier, error) {
	p, err := regexp.Compile(pattern)
	if err != nil {
		return Mogrifier{}, err
	}
	m := Mogrifier{pattern: p, name: name}
	for item := range strings.SplitSeq(tags, ",") {
		if strings.TrimSpace(item) == "" {
			continue
		}
		k, v, _ := strings.Cut(item, ":")
		k, v = strings.TrimSpace(k), strings.TrimSpace(v)
		if k == "" || v == "" {
			return Mogrifier{}, fmt.Errorf("item %q is not name:value", strings.TrimSpace(item))
		}
		m.tags = append(m.tags, Tag{k, v})
	}
	return m, nil
}

// apply returns the new name and the tags for a name. ok reports whether the regular expression matches it.
func (m *Mogrifier) apply(name string) (string, []Tag, bool) {
	at := m.pattern.FindStringSubmatchIndex(name)
	if at == nil {
		return "", nil, false
	}
	tags := make([]Tag, len(m.tags))
	for i, t := range m.tags {
		tags[i] = Tag{t.Name, expand(t.Value, name, at, tagValue)}
	}
	return expand(m.name, name, at, nil), tags, true
}

// tagValue replaces commas by `_`, because a comma in a tag's value would begin another tag. A name contains neither
// `|` nor control characters.
func tagValue(s string) string { return strings.ReplaceAll(s, ",", "_") }

// expand replaces $0, $1 and so on in template by the groups that were found in name. at has the offsets of the groups.
func expand(template, name string, at []int, clean func(string) string) string {
	var b strings.Builder
	for template != "" {
		text, rest, found := strings.Cut(template, "$")
		b.WriteString(text)
		if !found {
			break
		}
		n := 0
		for n < len(rest) && isDigit(rest[n]) {
			n++
		}
		group, err := strconv.Atoi(rest[:n])
		if err != nil || group >= len(at)/2 {
			b.WriteString("$" + rest[:n])
		} else if from, to := at[2*group], at[2*group+1]; from >= 0 { // a group that matched nothing is empty
			value := name[from:to]
			if clean != nil {
				value = clean(value)
			}
			b.WriteString(value)
		}
		template = rest[n:]
	}
	return b.String()
}

const (
	// udpPacket is the greatest size of a datagram, which fits into an Ethernet frame with all headers.
	udpPacket = 1432
	// udpResolve is how often the server's name is looked up again.
	udpResolve = 30 * time.Second
	udpRetry   = 3 * time.Second
)

// udp sends lines in datagrams. It looks up the server's name in the background, since the name may not resolve at
// first.
type udp struct {
	sender atomic.Pointer[statsd.Sender]
	stop   context.CancelFunc
	done   chan struct{}
	packet []byte // only the flusher uses it
}

func newUDP(addr string, log *slog.Logger) *udp {
	ctx, stop := context.WithCancel(context.Background())
	u := &udp{stop: stop, done: make(chan struct{}), packet: make([]byte, 0, udpPacket)}
	go func() {
		defer close(u.done)
		for told := false; ; told = true {
			sender, err := statsd.NewResolvingSimpleSender(addr, udpResolve)
			if err == nil {
				u.sender.Store(&sender)
				return
			}
			if !told {
				log.Warn("stats: statsd's address does not resolve; counts are kept, times are not", "address", addr,
					"retry", udpRetry, "error", err)
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(udpRetry):
			}
		}
	}()
	return u
}

func (u *udp) ready() bool { return u.sender.Load() != nil }

// awake returns ready, without another look-up: a name that has not resolved for minutes will not resolve now.
func (u *udp) awake(context.Context) bool { return u.ready() }

// Send implements statsd.Sender. It returns an error if it does not take the line. If the kernel refuses a datagram,
// the lines in it are lost without an error.
func (u *udp) Send(line []byte) (int, error) {
	if !u.ready() {
		return 0, errAway
	}
	if len(u.packet) > 0 && len(u.packet)+len(line) >= udpPacket {
		if err := u.send(); err != nil {
			return 0, err
		}
	}
	u.packet = append(append(u.packet, line...), '\n')
	return len(line), nil
}

func (u *udp) send() error {
	_, err := (*u.sender.Load()).Send(u.packet)
	u.packet = u.packet[:0]
	return err
}

func (u *udp) flush() {
	if len(u.packet) > 0 && u.ready() {
		u.send()
	}
}

// Close implements statsd.Sender.
func (u *udp) Close() error { return u.drain(context.Background()) }

func (u *udp) drain(ctx context.Context) error {
	u.flush()
	u.stop()
	select {
	case <-u.done:
	case <-ctx.Done(): // still looking up the name, which cannot be cancelled
		return ctx.Err()
	}
	if s := u.sender.Load(); s != nil {
		return (*s).Close()
	}
	return nil
}
