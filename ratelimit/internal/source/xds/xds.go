// Package xds receives configuration from an xDS control plane, over one stream of the aggregated discovery service in
// its state-of-the-world form: each response has all resources. The package passes each response, as a Set, to a
// function, and sends the function's result to the control plane as an ACK or NACK.
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

// Set is one response of the control plane: all resources that exist.
type Set struct {
	Version string
	// Resources are encoded messages of the requested type. A Set without resources is valid.
	Resources [][]byte
	// Err says what is wrong with the response; Resources must not be used then.
	Err error
}

// Settings are the environment variables that say where the control plane is and how long to wait for it.
type Settings struct {
	// Id of this node, sent to the control plane.
	NodeID string `env:"CONFIG_GRPC_XDS_NODE_ID" envDefault:"default"`
	// host:port of the control plane, or another target that gRPC knows.
	Target string `env:"CONFIG_GRPC_XDS_SERVER_URL" envDefault:"localhost:18000"`
	// First pause after a dial that failed; each further failure doubles it, up to XDS_CLIENT_BACKOFF_MAX_INTERVAL; an
	// accepted set makes it short again.
	DialRetry time.Duration `env:"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL" envDefault:"3s" min:"1ms"`
	// Name that the server's certificate must be valid for, instead of the host of the address.
	ServerName string `env:"CONFIG_GRPC_XDS_SERVER_TLS_SAN"` // also the authority of the stream
	// First pause after a stream that broke; each further break doubles it; an accepted set makes it short again.
	StreamRetry time.Duration `env:"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL" envDefault:"10s" min:"1ms"`
	// Longest pause between tries to connect.
	MaxRetry time.Duration `env:"XDS_CLIENT_BACKOFF_MAX_INTERVAL" envDefault:"60s" min:"1ms"`
	// Longest response, in bytes; 0: 4194304. A longer one breaks the stream.
	MaxMessage int `env:"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES" envDefault:"0" min:"0"`
}

// Options are what NewClient needs.
type Options struct {
	Settings
	// Type is the type URL of the resources to request.
	Type string
	// NodeMetadata describes this client to the control plane, in addition to NodeID.
	NodeMetadata map[string]string
	// Headers are sent with each stream. Their names must be lower case.
	Headers map[string]string
	// Certs has the certificates for TLS; nil means no TLS.
	Certs *certs.Store
	// Jitter is the share, from 0 to 1, of a pause by which the pause is lengthened or shortened at random.
	Jitter float64
	Stats  *stats.Registry
	Log    *slog.Logger

	ping, pingTimeout time.Duration // 0 means pingEvery and pingPatience
	nackAgain         time.Duration // 0 means the constant nackAgain
}

const (
	// pingEvery is the time without traffic after which the control plane is pinged; pingPatience is the time it has to
	// answer. If a server forbids such pings, the time between pings is doubled, up to pingRarest.
	pingEvery    = 30 * time.Second
	pingPatience = 20 * time.Second
	pingRarest   = 10 * time.Minute
	// nackAgain is the first pause before a NACK is repeated for a set that the server has sent again. nackLongest is
	// the longest such pause. It is short, since a server may send nothing new before it has received the NACK.
	nackAgain   = 250 * time.Millisecond
	nackLongest = 5 * time.Second
	// connectPatience bounds the time for connecting, including TLS.
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

	// The following fields are used by Run only.
	accepted string            // version of the set in force
	inForce  [sha256.Size]byte // digest of the set in force
	applied  bool              // set once a set has been accepted
	some     bool              // set if the set in force has resources
	refused  [sha256.Size]byte // digest of the last set if it was refused
	refusal  *statuspb.Status  // the reason why the last set was refused; nil if it was not
	nagging  pauses            // the pauses between repeated NACKs

	mu    sync.Mutex
	state State
}

// NewClient returns a Client that has not connected yet.
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

// Reconnect ends the present stream, or the pause before the next one, and makes Run connect again at once. Reconnect
// does not wait until Run has done so.
func (c *Client) Reconnect() {
	select {
	case c.again <- struct{}{}:
	default: // a reconnection is pending already
	}
}

// Run receives sets and passes each to apply until ctx ends; then it returns nil. apply runs in this goroutine. If
// apply returns an error, the set is refused: the control plane gets a NACK with the reason, and Run goes on with its
// next response.
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

// after counts a broken stream or, if reached is false, a failed connection, and returns how long to wait before the
// next try.
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

// visit connects to the control plane and follows the stream until the stream breaks, or until Reconnect is called;
// asked is true if Reconnect was called. reached reports whether a stream was opened.
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
	wg.Wait() // so that asked is not read while it is written
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

// pauses computes the pauses between tries to connect. Each failed connection doubles the pause after the next failed
// connection, and each broken stream the pause after the next broken stream, up to longest.
type pauses struct {
	dial, stream, longest time.Duration
	jitter                float64
	random                func() float64 // a random number from 0 to 1
	dials, streams        int            // failed connections, and broken streams, since a response was accepted last
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

// reset is called when a response has been accepted.
func (p *pauses) reset() { p.dials, p.streams = 0, 0 }

// pause returns the pause after the given number of failures in succession; after the first, it is initial. Jitter does
// not make the pause longer than longest.
func (p *pauses) pause(initial time.Duration, failures int) time.Duration {
	d := min(initial, p.longest)
	for ; failures > 1 && d < p.longest; failures-- {
		d = min(2*d, p.longest)
	}
	d += time.Duration(float64(d) * p.jitter * (2*p.random() - 1))
	return max(0, min(d, p.longest))
}
