// Package xds receives configuration from a control plane: whole sets of resources over one stream of aggregated
// discovery, state of the world, each passed to one function, whose result is sent to the control plane as an ACK or
// NACK.
//
// It knows streams, versions and when to try again. It does not know what the resources mean.
package xds

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"

	"gatehouse/ratelimit/internal/stats"
	"gatehouse/shared/certs"
)

// Set is one response: all resources that exist.
type Set struct {
	Version string
	// Resources are encoded messages of the requested type; no resources at all are a valid set.
	Resources [][]byte
	// Err says what is wrong with the response; Resources is not valid then.
	Err error
}

// Settings say where the control plane is and how long to wait for it.
type Settings struct {
	// Id of this node, sent to the control plane.
	NodeID string `env:"CONFIG_GRPC_XDS_NODE_ID" envDefault:"default"`
	// host:port of the control plane, or another target that gRPC knows.
	Target string `env:"CONFIG_GRPC_XDS_SERVER_URL" envDefault:"localhost:18000"`
	// Pause between tries until a first set is accepted. Later: pause after a dial that failed, doubling up to
	// XDS_CLIENT_BACKOFF_MAX_INTERVAL.
	DialRetry time.Duration `env:"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL" envDefault:"3s" min:"1ms"`
	// Name that the server's certificate must be valid for, instead of the host of the address.
	ServerName string `env:"CONFIG_GRPC_XDS_SERVER_TLS_SAN"` // also the authority of the stream
	// Pause after a stream that broke, once a set was accepted; it doubles with each, and begins again after
	// a set that was accepted.
	StreamRetry time.Duration `env:"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL" envDefault:"10s" min:"1ms"`
	// Longest pause of either kind, once a set was accepted.
	MaxRetry time.Duration `env:"XDS_CLIENT_BACKOFF_MAX_INTERVAL" envDefault:"60s" min:"1ms"`
	// Longest response, in bytes; 0: 4194304. A longer one breaks the stream.
	MaxMessage int `env:"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES" envDefault:"0" min:"0"`
}

// Options are what NewClient takes.
type Options struct {
	Settings
	// Type is the type URL of the resources.
	Type string
	// NodeMetadata identifies this client to the control plane, as NodeID does.
	NodeMetadata map[string]string
	// Headers go with each stream. Names are lower case.
	Headers map[string]string
	// Certs turns TLS on.
	Certs *certs.Store
	// Jitter is the share, 0 to 1, by which each pause after the first accepted response is lengthened or shortened at
	// random.
	Jitter float64
	Stats  *stats.Registry
	Log    *slog.Logger

	ping, pingTimeout time.Duration // 0 means pingEvery and pingPatience
	nackAgain         time.Duration // 0 means nackAgain
}

const (
	// pingEvery is how long a stream may be silent before the control plane is pinged; pingPatience is how long it has
	// to answer. A server that forbids such pings is then pinged half as often, down to pingRarest.
	pingEvery    = 30 * time.Second
	pingPatience = 20 * time.Second
	pingRarest   = 10 * time.Minute
	// nackAgain is the first pause before a NACK that repeats the last one, nackLongest the longest pause: a server
	// that waits for the NACK has nothing new to send before.
	nackAgain   = 250 * time.Millisecond
	nackLongest = 5 * time.Second
	// connectPatience bounds connecting, TLS included.
	connectPatience = 10 * time.Second
)

// Client follows one control plane.
type Client struct {
	o       Options
	node    *corepb.Node
	headers metadata.MD
	again   chan struct{}
	pauses  pauses

	acks, nacks, dialFailures, streamFailures *stats.Counter

	// Fields of Run.
	accepted string            // version of the set in force
	inForce  [sha256.Size]byte // digest of the set in force
	applied  bool              // a set was accepted
	some     bool              // the set in force has resources
	refused  [sha256.Size]byte // digest of the last set, if it was refused
	refusal  *statuspb.Status  // why the last set was refused; nil if it was not
	nagging  pauses            // between NACKs that repeat the last NACK

	mu    sync.Mutex
	state State
}

// NewClient returns a Client that has not dialled yet.
func NewClient(o Options) *Client {
	o.ping, o.pingTimeout = cmp.Or(o.ping, pingEvery), cmp.Or(o.pingTimeout, pingPatience)
	o.nackAgain = cmp.Or(o.nackAgain, nackAgain)
	c := &Client{
		nagging: newPauses(0, o.nackAgain, nackLongest, 0),
		o:       o, headers: metadata.New(o.Headers), again: make(chan struct{}, 1),
		pauses:         newPauses(o.DialRetry, o.StreamRetry, o.MaxRetry, o.Jitter),
		node:           &corepb.Node{Id: o.NodeID},
		acks:           o.Stats.Counter("ratelimit.xds.ack"),
		nacks:          o.Stats.Counter("ratelimit.xds.nack"),
		dialFailures:   o.Stats.Counter("ratelimit.xds.connect_failure"),
		streamFailures: o.Stats.Counter("ratelimit.xds.stream_failure"),
	}
	if len(o.NodeMetadata) > 0 {
		c.node.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{}}
		for k, v := range o.NodeMetadata {
			c.node.Metadata.Fields[k] = structpb.NewStringValue(v)
		}
	}
	c.nagging.reset() // repeated refusals do not mean that the first set is missing
	c.state = State{Server: o.Target, Since: time.Now(), Awaiting: true}
	o.Stats.FlagFunc("ratelimit.xds.awaiting_first_set", func() bool { return c.State().Awaiting })
	o.Stats.FlagFunc("ratelimit.xds.connected", func() bool { return c.State().Connected })
	o.Stats.GaugeFunc("ratelimit.xds.acked_at", func() int64 {
		if at := c.State().AckedAt; !at.IsZero() {
			return at.Unix()
		}
		return 0
	})
	return c
}

// Reconnect ends the present stream, or pause, and connects again at once. It does not wait.
func (c *Client) Reconnect() {
	select {
	case c.again <- struct{}{}:
	default: // a reconnection is already pending
	}
}

// Run passes each set to apply until ctx ends; then it returns nil. apply runs in this goroutine. Its error refuses the
// set: the control plane gets a NACK with the reason, and its next response is the next set.
func (c *Client) Run(ctx context.Context, apply func(Set) error) error {
	for ctx.Err() == nil {
		reached, asked, err := c.visit(ctx, apply)
		switch {
		case ctx.Err() != nil:
			return nil
		case asked:
			c.disconnected(nil, 0)
			continue
		}
		pause := c.after(reached, err)
		c.disconnected(err, pause)
		c.o.Log.Warn("xds: "+c.trouble(reached), "server", c.o.Target, "again_in", pause.Round(time.Millisecond),
			"error", err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		case <-c.again:
		}
	}
	return nil
}

func (c *Client) trouble(reached bool) string {
	text := "the control plane can't be reached"
	if reached {
		text = "the stream broke"
	}
	if c.applied {
		return text + "; the rules already loaded stay"
	}
	return text + "; there are no rules yet"
}

// after counts a failure and returns how long to wait.
func (c *Client) after(reached bool, err error) time.Duration {
	switch {
	case !reached:
		c.dialFailures.Inc()
		return c.pauses.dialFailed()
	case forbidsPings(err) && c.o.ping < pingRarest:
		c.o.ping = min(2*c.o.ping, pingRarest)
		c.o.Log.Info("xds: the server wants fewer pings", "every", c.o.ping)
	}
	c.streamFailures.Inc()
	return c.pauses.streamBroke()
}

// visit dials, and follows the stream until it breaks or Reconnect is called (asked). reached reports whether there was
// a stream.
func (c *Client) visit(ctx context.Context, apply func(Set) error) (reached, asked bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-c.again:
			asked = true
			cancel()
		case <-ctx.Done():
		}
	})
	opened, failure := c.stream(ctx, apply)
	cancel()
	wg.Wait() // so that asked is written before it is read
	return opened, asked, failure
}

func (c *Client) stream(ctx context.Context, apply func(Set) error) (opened bool, err error) {
	conn, err := c.dial()
	if err != nil {
		return false, fmt.Errorf("xds: %w", err)
	}
	defer conn.Close()
	s, err := c.open(ctx, conn)
	if err != nil {
		return false, fmt.Errorf("xds: %w", err)
	}
	return true, fmt.Errorf("xds: %w", s.follow(apply))
}

// pauses are the waits between tries. Until the first accepted response each pause is the one after the first failed
// dial: a daemon without rules decides nothing, so its pauses do not grow. Afterwards each failure of a kind doubles
// the next pause, up to longest.
type pauses struct {
	dial, stream, longest time.Duration
	jitter                float64
	random                func() float64 // from 0 to 1
	settled               bool           // there was an accepted response
	dials, streams        int            // failures since the last accepted response
}

func newPauses(dial, stream, longest time.Duration, jitter float64) pauses {
	return pauses{dial: dial, stream: stream, longest: longest, jitter: jitter, random: rand.Float64}
}

func (p *pauses) dialFailed() time.Duration {
	p.dials++
	return p.pause(p.dial, p.dials)
}

func (p *pauses) streamBroke() time.Duration {
	p.streams++
	return p.pause(p.stream, p.streams)
}

// reset is called after an accepted response.
func (p *pauses) reset() { p.settled, p.dials, p.streams = true, 0, 0 }

// pause returns initial for the first failure. Jitter makes no pause longer than longest.
func (p *pauses) pause(initial time.Duration, failures int) time.Duration {
	if !p.settled {
		return p.dial
	}
	d := min(initial, p.longest)
	for ; failures > 1 && d < p.longest; failures-- {
		d = min(2*d, p.longest)
	}
	d += time.Duration(float64(d) * p.jitter * (2*p.random() - 1))
	return max(0, min(d, p.longest))
}
