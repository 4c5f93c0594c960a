package xds

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"gatehouse/ratelimit/internal/grpctls"
)

// dial makes a connection for one stream. A connection is never used for a second stream, because gRPC would reconnect
// it on its own, at times of its own.
func (c *Client) dial() (*grpc.ClientConn, error) {
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableServiceConfig(), // do not take a retry policy from DNS
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: connectPatience}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: c.o.ping, Timeout: c.o.pingTimeout}),
	}
	if c.o.Certs != nil {
		options = append(options, grpc.WithTransportCredentials(grpctls.Client(c.o.Certs)))
		if c.o.ServerName != "" {
			options = append(options, grpc.WithAuthority(c.o.ServerName))
		}
	}
	if c.o.MaxMessage > 0 {
		options = append(options, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(c.o.MaxMessage)))
	}
	return grpc.NewClient(c.o.Target, options...)
}

// stream is one stream of the aggregated discovery service (ADS).
type stream struct {
	c *Client
	discoverypb.AggregatedDiscoveryService_StreamAggregatedResourcesClient
}

// open starts a stream and requests all resources. The request has the version in force, never a refused one, and no
// nonce, because nonces belong to one stream.
func (c *Client) open(ctx context.Context, conn *grpc.ClientConn) (*stream, error) {
	if len(c.headers) > 0 {
		ctx = metadata.NewOutgoingContext(ctx, c.headers)
	}
	under, err := discoverypb.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return nil, err
	}
	s := &stream{c, under}
	if err := s.ask("", nil); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	c.connected()
	c.o.Log.Info("xds: connected", "server", c.o.Target, "version", c.accepted)
	return s, nil
}

// ask sends one request: the first request of a stream, an ACK or, if refusal is set, a NACK. The error io.EOF means
// that the stream has ended; Recv returns the reason.
func (s *stream) ask(nonce string, refusal *statuspb.Status) error {
	return s.Send(&discoverypb.DiscoveryRequest{
		VersionInfo: s.c.accepted, Node: s.c.node, TypeUrl: s.c.o.Type, ResponseNonce: nonce, ErrorDetail: refusal,
	})
}

// follow receives responses and answers them until the stream breaks. The goroutine that receives ends with the
// stream's context.
func (s *stream) follow(apply func(Set) error) error {
	responses, broken := make(chan *discoverypb.DiscoveryResponse), make(chan error, 1)
	go func() {
		for {
			response, err := s.Recv()
			if err != nil {
				broken <- s.c.explain(err)
				return
			}
			select {
			case responses <- response:
			case <-s.Context().Done():
				broken <- s.Context().Err()
				return
			}
		}
	}()
	var held *reply // a NACK equal to the previous one, to be sent after a pause
	due := time.NewTimer(0)
	defer due.Stop()
	due.Stop()
	for {
		var answer *reply
		select {
		case err := <-broken:
			return err
		case response := <-responses:
			held = nil // only the newest response needs an answer
			if response.TypeUrl != s.c.o.Type {
				s.c.o.Log.Debug("xds: a response of another type is ignored", "type", response.TypeUrl)
				continue
			}
			var pause time.Duration
			if answer, pause = s.c.judge(response, apply); pause > 0 {
				held, answer = answer, nil
				due.Reset(pause)
			}
		case <-due.C:
			answer, held = held, nil
		}
		if answer == nil {
			continue
		}
		if answer.refusal != nil {
			s.c.nacks.Inc()
		} else {
			s.c.acks.Inc()
		}
		if err := s.ask(answer.nonce, answer.refusal); err != nil {
			if !errors.Is(err, io.EOF) {
				return err
			}
			return <-broken // the receiving goroutine has the reason
		}
	}
}

// reply is the answer to a response of the control plane: an ACK or, if refusal is set, a NACK.
type reply struct {
	nonce   string
	refusal *statuspb.Status
}

// explain adds to an error of a stream what an operator can do about it.
func (c *Client) explain(err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return errors.New("the server ended the stream")
	case status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "larger than max"):
		return fmt.Errorf("%w; XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES allows more", err)
	}
	return err
}

// judge passes the resources of a response to apply. It returns the answer, and how long to wait before the answer is
// sent. A set that was refused before is not passed to apply again, and its NACK is delayed by a growing pause: control
// planes may send a refused set again as soon as they receive the NACK.
func (c *Client) judge(response *discoverypb.DiscoveryResponse,
	apply func(Set) error) (answer *reply, pause time.Duration) {
	set := Set{Version: response.VersionInfo}
	set.Resources, set.Err = c.payloads(response.Resources)
	sum := digest(set)
	switch {
	case c.refusal != nil && sum == c.refused:
		return &reply{response.Nonce, c.refusal}, c.nagging.streamBroke()
	case c.refusal == nil && c.applied && sum == c.inForce: // the set in force, with another version or on a new stream
	default:
		c.tellEmpty(set)
		err := apply(set)
		if err == nil {
			err = set.Err
		}
		c.nagging.reset()
		if err != nil {
			reason := shorten(err.Error())
			c.refused, c.refusal = sum, &statuspb.Status{Code: int32(codes.InvalidArgument), Message: reason}
			c.nacked(response.VersionInfo, reason)
			return &reply{response.Nonce, c.refusal}, 0
		}
	}
	c.accepted, c.inForce, c.refusal, c.applied, c.some = response.VersionInfo, sum, nil, true, len(set.Resources) > 0
	c.pauses.reset()
	c.acked(response.VersionInfo, len(set.Resources))
	return &reply{nonce: response.Nonce}, 0
}

// payloads returns the encoded resources without the Any messages around them.
func (c *Client) payloads(all []*anypb.Any) (out [][]byte, err error) {
	var errs []error
	for i, r := range all {
		if r.TypeUrl != c.o.Type {
			errs = append(errs, fmt.Errorf("resources[%d] is a %q, want a %q", i, r.TypeUrl, c.o.Type))
			continue
		}
		out = append(out, r.Value)
	}
	return out, errors.Join(errs...)
}

// tellEmpty logs a warning if an empty set removes all limits.
func (c *Client) tellEmpty(set Set) {
	switch {
	case set.Err != nil || len(set.Resources) > 0:
	case c.some:
		c.o.Log.Warn("xds: NO RESOURCES ANY MORE: every limit is gone", "server", c.o.Target, "version", set.Version)
	case !c.applied:
		c.o.Log.Warn("xds: the control plane has no resources: nothing is limited", "server", c.o.Target,
			"version", set.Version)
	}
}

// digest returns a hash of a set's resources that does not depend on their order.
func digest(set Set) (sum [sha256.Size]byte) {
	sorted := slices.SortedFunc(slices.Values(set.Resources), bytes.Compare)
	h := sha256.New()
	for _, r := range sorted {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(r))))
		h.Write(r)
	}
	if set.Err != nil {
		io.WriteString(h, set.Err.Error())
	}
	h.Sum(sum[:0])
	return sum
}

// maxReason bounds the reason in a NACK, in bytes: a set may have a thousand errors, and control planes log the reason.
const maxReason = 16 << 10

func shorten(reason string) string {
	if len(reason) <= maxReason {
		return strings.ToValidUTF8(reason, "?")
	}
	cut := strings.LastIndexByte(reason[:maxReason], '\n')
	if cut < 0 {
		cut = maxReason
	}
	rest := strings.Count(strings.TrimSpace(reason[cut:]), "\n") + 1
	return strings.ToValidUTF8(reason[:cut], "?") + fmt.Sprintf("\n(%d more lines)", rest)
}

// forbidsPings reports whether the server ended the connection because it was pinged too often.
func forbidsPings(err error) bool { return strings.Contains(err.Error(), "too_many_pings") }
