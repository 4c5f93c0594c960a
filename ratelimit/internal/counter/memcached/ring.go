package memcached

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/link"
)

// ring is the list of nodes, which determines the node of each key. A node that is listed twice gets twice as many
// keys.
type ring struct{ nodes []*node }

// pick returns the node that has a key: the same node that envoyproxy/ratelimit's client library gomemcache chooses, so
// that both find the same counters.
func (r *ring) pick(key string) *node {
	if len(r.nodes) == 1 {
		return r.nodes[0]
	}
	sum := crc32.ChecksumIEEE(unsafe.Slice(unsafe.StringData(key), len(key)))
	return r.nodes[sum%uint32(len(r.nodes))]
}

// setNodes puts a new list of nodes in force. Nodes that stay on the list keep their connections and pending hits.
// Nodes that leave the list are dropped after their pending hits have been written.
func (s *Store) setNodes(addrs []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := map[string]*node{}
	for _, n := range s.nodes {
		old[n.addr.Addr] = n
		n.gone = true
	}
	r := &ring{}
	for _, addr := range addrs {
		n := old[addr]
		if n == nil {
			n = s.newNode(addr)
			old[addr], s.nodes = n, append(s.nodes, n)
		}
		n.gone = false
		r.nodes = append(r.nodes, n)
	}
	s.ring.Store(r)
	s.retire()
}

// retire drops the nodes that are no longer listed and have no pending hits. s.mu is held.
func (s *Store) retire() {
	s.nodes = slices.DeleteFunc(s.nodes, func(n *node) bool {
		if !n.gone || len(n.lookups)+len(n.out)+n.workers > 0 || n.writing {
			return false
		}
		if len(n.due) > 0 && !n.breaker.IsOpen() {
			return false
		}
		for _, t := range n.due { // the node is lost, and will not be probed any longer
			s.dropped += hitsOf(t.pending)
			s.waiting--
		}
		n.retired = true
		n.rest()
		return true
	})
}

// follow repeats the DNS look-up of the nodes at the interval Settings.Refresh. A look-up that fails or finds no node
// changes nothing.
func (s *Store) follow() {
	tick := time.NewTicker(s.o.Settings.Refresh)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		addrs, err := s.resolve(s.ctx)
		if err != nil {
			if s.ctx.Err() == nil {
				s.stats.ResolveFailures.Add(1)
				s.o.Log.Warn("the memcached nodes could not be looked up again; those known stay", "error", err)
			}
			continue
		}
		var now []string
		for _, n := range s.ring.Load().nodes {
			now = append(now, n.addr.Addr)
		}
		if slices.Equal(addrs, now) {
			s.mu.Lock()
			s.retire()
			s.mu.Unlock()
			continue
		}
		s.o.Log.Warn("the memcached nodes have changed: most keys move, and their counters begin again", "before", now,
			"now", addrs)
		s.setNodes(addrs)
	}
}

// resolveTimeout bounds one DNS look-up of Settings.SRV.
const resolveTimeout = 5 * time.Second

// resolve looks up the nodes that Settings.SRV names in DNS. It sorts them by their text, so that all instances have
// the same order. Priority and weight of the records are ignored.
func (s *Store) resolve(ctx context.Context) ([]string, error) {
	service, proto, name, err := parseSRV(s.o.Settings.SRV)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	_, records, err := s.o.Resolver.LookupSRV(ctx, service, proto, name)
	if err != nil {
		return nil, err
	}
	if len(records) == 0 {
		return nil, fmt.Errorf("%s names no nodes", s.o.Settings.SRV)
	}
	return nodeList(records), nil
}

// nodeList returns the records as addresses in the order that envoyproxy/ratelimit has: sorted while the host names
// still end in a dot.
func nodeList(records []*net.SRV) (addrs []string) {
	for _, r := range records {
		addrs = append(addrs, r.Target+":"+strconv.Itoa(int(r.Port)))
	}
	slices.Sort(addrs)
	for i, a := range addrs {
		at := strings.LastIndexByte(a, ':')
		addrs[i] = net.JoinHostPort(strings.TrimSuffix(a[:at], "."), a[at+1:])
	}
	return addrs
}

// parseSRV splits a name of the form _service._proto.name.
func parseSRV(s string) (service, proto, name string, err error) {
	parts := strings.SplitN(s, ".", 3)
	if len(parts) == 3 && len(parts[0]) > 1 && len(parts[1]) > 1 && parts[0][0] == '_' &&
		parts[1][0] == '_' && parts[2] != "" {
		return parts[0][1:], parts[1][1:], parts[2], nil
	}
	return "", "", "", errors.New("not of the form _service._proto.name")
}

// CheckSRV returns an error unless s has the form of MCACHE_SRV.
func CheckSRV(s string) error {
	_, _, _, err := parseSRV(s)
	return err
}

// CheckNode returns an error unless s can be an item of MCACHE_HOST_PORT: host:port, or the path of a unix socket. The
// error does not show s, which may contain a password by mistake.
func CheckNode(s string) error {
	if strings.Contains(s, "/") && !strings.Contains(s, "://") {
		return nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" || strings.Contains(host, "@") || !link.IsPort(port) {
		return errors.New("neither host:port nor a path; nodes take no user or password")
	}
	return nil
}

const (
	// maxKey is the longest key that memcached accepts, in bytes.
	maxKey = 250
	// longestRelative is the longest expiry, in seconds, that memcached reads as a time from now. It reads a larger
	// number as a date in Unix seconds.
	longestRelative = 30 * 86400
)

// storedKey returns the form of a counter's key that is used in memcached, or a *KeyError if memcached would refuse the
// key. If hashed is set, such a key is replaced by "sha256:" and its SHA-256 in hex instead. All instances make the
// same hash. No key of the escaped layout equals it, since such keys contain a bar.
func storedKey(key []byte, hashed bool) (string, error) {
	why := keyTrouble(key)
	switch {
	case why == "":
		return string(key), nil
	case hashed:
		sum := sha256.Sum256(key)
		return "sha256:" + hex.EncodeToString(sum[:]), nil
	}
	return "", &counter.KeyError{Why: why}
}

// keyTrouble returns why memcached would refuse the key, or an empty string if it would not.
func keyTrouble(key []byte) string {
	switch {
	case len(key) == 0:
		return "is empty"
	case len(key) > maxKey:
		return fmt.Sprintf("has %d bytes, memcached takes at most %d", len(key), maxKey)
	}
	for _, c := range key {
		if c <= ' ' || c == 0x7f {
			return "holds white space or a control character, which memcached does not take"
		}
	}
	return ""
}

// CheckPrefix returns an error if memcached would refuse every key that begins with this prefix.
func CheckPrefix(prefix string) error {
	if why := keyTrouble([]byte(prefix)); prefix != "" && why != "" {
		return &counter.KeyError{Why: why}
	}
	return nil
}

// expiryOf returns the expiry to send to memcached for a key that is to expire at the time ends, in Unix seconds. It is
// the number of seconds from now or, if that is more than 30 days, the date. If ends has passed, expiryOf returns
// false.
//
// memcached reads the expiry as a signed number of 32 bits, so a date can be 2038-01-19 at most. Later than that, keys
// live for 30 days at most.
func expiryOf(ends, now int64) (int32, bool) {
	switch left := ends - now; {
	case left <= 0:
		return 0, false
	case left <= longestRelative:
		return int32(left), true
	case now > math.MaxInt32-longestRelative:
		return longestRelative, true
	}
	return int32(min(ends, math.MaxInt32)), true
}

// parseTotal parses the value of a counter; the result is at most 2^63-1. When a number becomes shorter, memcached
// fills the value with spaces.
func parseTotal(value []byte) (int64, error) {
	n, err := strconv.ParseUint(strings.TrimRight(string(value), " "), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: a counter holds no number", counter.ErrUnavailable)
	}
	return int64(min(n, math.MaxInt64)), nil
}
