package localserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// MasterName is the name that the sentinels of RedisSentinels give their master.
const MasterName = "gate"

// SentinelOptions are the options of RedisSentinels.
type SentinelOptions struct {
	// Password is the password of the servers, and SentinelPassword that of the sentinels.
	Password, SentinelPassword string
	// DownAfter is the time without an answer after which a master is replaced (default 1 s).
	DownAfter time.Duration
	// TLS makes all servers and sentinels use TLS, too; TLSURL then returns their addresses.
	TLS TLSFiles
}

// SentinelSet has three sentinels and the servers that they watch.
type SentinelSet struct {
	// Servers are the first master and its two replicas. A failover does not change their order.
	Servers   []*Server
	Sentinels []*Server
	options   SentinelOptions
}

// URL returns the KVSTORE_URL for KVSTORE_TYPE=sentinel.
func (s *SentinelSet) URL() string { return MasterName + "," + addresses(s.Sentinels) }

// Close ends all servers and sentinels.
func (s *SentinelSet) Close() { closeAll(append(s.Sentinels, s.Servers...)) }

// Forget calls Server.Forget for all servers and sentinels.
func (s *SentinelSet) Forget() error { return forgetAll(append(s.Sentinels, s.Servers...)) }

// Master returns the server that most sentinels name as the master.
func (s *SentinelSet) Master(ctx context.Context) (*Server, error) {
	votes := map[string]int{}
	var last error
	for _, sentinel := range s.Sentinels {
		got, err := RedisCommand(ctx, sentinel.Addr(), s.options.SentinelPassword, "SENTINEL",
			"GET-MASTER-ADDR-BY-NAME", MasterName)
		if err != nil {
			last = err
			continue
		}
		votes[strings.Join(strings.Fields(got), ":")]++
	}
	for _, server := range s.Servers {
		if votes[s.options.known(server)] > len(s.Sentinels)/2 {
			return server, nil
		}
	}
	return nil, fmt.Errorf("localserver: the sentinels do not agree: %v, %w", votes, last)
}

// Flush deletes all keys of the master.
func (s *SentinelSet) Flush(ctx context.Context) error {
	return flushAll(ctx, s.Servers, s.options.Password)
}

// RedisSentinels starts a master with two replicas, and three sentinels that watch them. It waits until all know each
// other.
func RedisSentinels(ctx context.Context, o SentinelOptions) (_ *SentinelSet, err error) {
	if o.DownAfter == 0 {
		o.DownAfter = time.Second
	}
	set := &SentinelSet{options: o}
	defer func() {
		if err != nil {
			set.Close()
		}
	}()
	server := RedisOptions{Password: o.Password, tls: o.TLS, Config: []string{
		"repl-diskless-sync-delay 0", "repl-ping-replica-period 1", "repl-backlog-size 1mb",
	}}
	if o.Password != "" {
		server.Config = append(server.Config, "masterauth "+o.Password)
	}
	for i := range 3 {
		if i == 1 {
			_, port, _ := net.SplitHostPort(o.known(set.Servers[0]))
			server.Config = append(server.Config, "replicaof 127.0.0.1 "+port)
		}
		s, err := start(ctx, keep(server.plan()))
		if err != nil {
			return nil, err
		}
		set.Servers = append(set.Servers, s)
	}
	for _, s := range set.Servers[1:] {
		if err := awaitInfo(ctx, s.Addr(), o.Password, "replication", "master_link_status:up"); err != nil {
			return nil, err
		}
	}
	for range 3 {
		s, err := start(ctx, o.plan(o.known(set.Servers[0])))
		if err != nil {
			return nil, err
		}
		set.Sentinels = append(set.Sentinels, s)
	}
	return set, set.Await(ctx)
}

// Await waits until all is well: the sentinels agree on a master, and two replicas are in sync with it.
func (s *SentinelSet) Await(ctx context.Context) error {
	for _, sentinel := range s.Sentinels {
		if err := awaitInfo(ctx, sentinel.Addr(), s.options.SentinelPassword, "sentinel", "status=ok,",
			"slaves=2,sentinels=3"); err != nil {
			return err
		}
	}
	return s.awaitMaster(ctx, "connected_slaves:2", "state=online")
}

// AwaitReplica waits until a replica is in sync with the master, so that a failover would lose nothing.
func (s *SentinelSet) AwaitReplica(ctx context.Context) error {
	return s.awaitMaster(ctx, "state=online")
}

// awaitMaster waits until the answer of the present master to INFO replication contains all texts.
func (s *SentinelSet) awaitMaster(ctx context.Context, texts ...string) error {
	return awaitText(ctx, append(texts, "role:master"), func() (string, error) {
		master, err := s.Master(ctx)
		if err != nil {
			return "", err
		}
		return RedisCommand(ctx, master.Addr(), s.options.Password, "INFO", "replication")
	})
}

// known returns the address by which the other servers know a server.
func (o SentinelOptions) known(s *Server) string {
	if !o.TLS.used() {
		return s.Addr()
	}
	addr, _ := s.TLSAddr() // a server with TLS has such an address
	return addr
}

// plan returns the plan of a sentinel, which keeps its state in its configuration file. master is the address of the
// master to watch.
func (o SentinelOptions) plan(master string) plan {
	p := plan{program: "redis-server", ready: redisReady, files: true}
	p.prepare = func(dir string, port int) ([]string, error) {
		host, masterPort, _ := net.SplitHostPort(master)
		var b strings.Builder
		fmt.Fprintf(&b, "bind 127.0.0.1\nport %d\ndir %s\nprotected-mode no\n", port, dir)
		fmt.Fprintf(&b, "sentinel monitor %s %s %s 2\n", MasterName, host, masterPort)
		fmt.Fprintf(&b, "sentinel down-after-milliseconds %s %d\n", MasterName, o.DownAfter.Milliseconds())
		fmt.Fprintf(&b, "sentinel failover-timeout %s 5000\nsentinel parallel-syncs %[1]s 2\n", MasterName)
		if o.Password != "" {
			fmt.Fprintf(&b, "sentinel auth-pass %s %s\n", MasterName, o.Password)
		}
		if o.SentinelPassword != "" {
			fmt.Fprintf(&b, "requirepass %s\nsentinel sentinel-pass %[1]s\n", o.SentinelPassword)
		}
		lines, err := o.TLS.lines(dir)
		if err != nil {
			return nil, err
		}
		b.WriteString(strings.Join(append(lines, ""), "\n"))
		conf := filepath.Join(dir, "sentinel.conf")
		return []string{conf, "--sentinel"}, os.WriteFile(conf, []byte(b.String()), 0o600)
	}
	return p
}

// ClusterOptions are the options of RedisCluster.
type ClusterOptions struct {
	Password string
	// NodeTimeout is the time without an answer after which a node counts as failed (default 15 s).
	NodeTimeout time.Duration
	// TLS makes all nodes use TLS, too; TLSURL then returns their addresses.
	TLS TLSFiles
	// Masters and Replicas are the numbers of masters and replicas (default 3 and 3). Replica i replicates master i.
	Masters, Replicas int
}

// Cluster is a Redis Cluster.
type Cluster struct {
	// Nodes are the first masters, in the order of their slots, then their replicas.
	Nodes   []*Server
	options ClusterOptions
}

// URL returns the KVSTORE_URL for KVSTORE_TYPE=cluster.
func (c *Cluster) URL() string { return addresses(c.Nodes) }

// Close ends all nodes.
func (c *Cluster) Close() { closeAll(c.Nodes) }

// Forget calls Server.Forget for all nodes.
func (c *Cluster) Forget() error { return forgetAll(c.Nodes) }

// RedisCluster starts a cluster and waits until every node reports that all slots are served.
func RedisCluster(ctx context.Context, o ClusterOptions) (_ *Cluster, err error) {
	if o.Masters == 0 {
		o.Masters, o.Replicas = 3, 3
	}
	if o.NodeTimeout == 0 {
		o.NodeTimeout = 15 * time.Second
	}
	c := &Cluster{options: o}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	for range o.Masters + o.Replicas {
		s, err := start(ctx, o.plan())
		if err != nil {
			return nil, err
		}
		c.Nodes = append(c.Nodes, s)
	}
	for i, s := range c.Nodes {
		if _, err := c.Do(ctx, s, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1)); err != nil {
			return nil, err
		}
		if i < o.Masters {
			first, next := i*16384/o.Masters, (i+1)*16384/o.Masters
			if _, err := c.Do(
				ctx, s, "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(first), strconv.Itoa(next-1)); err != nil {
				return nil, err
			}
		}
		if i > 0 {
			if err := c.meet(ctx, s); err != nil {
				return nil, err
			}
		}
	}
	if err := c.Await(ctx, fmt.Sprintf("cluster_known_nodes:%d", len(c.Nodes))); err != nil {
		return nil, err
	}
	for i, s := range c.Nodes[o.Masters:] {
		id, err := c.Do(ctx, c.Nodes[i%o.Masters], "CLUSTER", "MYID")
		if err != nil {
			return nil, err
		}
		if _, err := c.Do(ctx, s, "CLUSTER", "REPLICATE", strings.TrimSpace(id)); err != nil {
			return nil, err
		}
		if err := awaitInfo(ctx, s.Addr(), o.Password, "replication", "master_link_status:up"); err != nil {
			return nil, err
		}
	}
	return c, c.Await(ctx, "cluster_state:ok", fmt.Sprintf("cluster_size:%d", o.Masters))
}

// meet makes the first node know another node (CLUSTER MEET).
func (c *Cluster) meet(ctx context.Context, s *Server) error {
	bus, err := s.busPort()
	if err != nil {
		return err
	}
	port := strconv.Itoa(s.port)
	if c.options.TLS.used() {
		addr, err := s.TLSAddr()
		if err != nil {
			return err
		}
		_, port, _ = net.SplitHostPort(addr)
	}
	_, err = c.Do(ctx, c.Nodes[0], "CLUSTER", "MEET", "127.0.0.1", port, strconv.Itoa(bus))
	return err
}

// Await waits until the answer of every running node to CLUSTER INFO contains all lines.
func (c *Cluster) Await(ctx context.Context, lines ...string) error {
	for _, s := range c.Nodes {
		select {
		case <-s.Ended():
			continue
		default:
		}
		if err := awaitText(ctx, lines, func() (string, error) {
			return c.Do(ctx, s, "CLUSTER", "INFO")
		}); err != nil {
			return err
		}
	}
	return nil
}

// AwaitReplica waits until a node is a replica and in sync with its master.
func (c *Cluster) AwaitReplica(ctx context.Context, s *Server) error {
	return awaitInfo(ctx, s.Addr(), c.options.Password, "replication", "role:slave", "master_link_status:up")
}

// Do sends a command to one node and returns the answer as text.
func (c *Cluster) Do(ctx context.Context, s *Server, args ...string) (string, error) {
	return RedisCommand(ctx, s.Addr(), c.options.Password, args...)
}

// Flush deletes all keys of the cluster.
func (c *Cluster) Flush(ctx context.Context) error { return flushAll(ctx, c.Nodes, c.options.Password) }

// flushAll deletes all keys of the servers that are masters; their replicas follow.
func flushAll(ctx context.Context, servers []*Server, password string) error {
	for _, s := range servers {
		if _, err := RedisCommand(ctx, s.Addr(), password, "FLUSHALL"); err != nil &&
			!strings.Contains(err.Error(), "READONLY") {
			return err
		}
	}
	return nil
}

// plan returns the plan of a node, which keeps its identity and the cluster's layout in the file nodes.conf.
func (o ClusterOptions) plan() plan {
	server := RedisOptions{Password: o.Password}
	p := keep(server.plan())
	bus := 0 // the default, the port plus 10,000, may not be a valid port
	p.prepare = func(dir string, port int) (args []string, err error) {
		if bus == 0 { // chosen once, since the other nodes know the node by this port when it is restarted
			if bus, err = freePort(); err != nil {
				return nil, err
			}
		}
		server := server
		server.Config = []string{
			"cluster-enabled yes", "cluster-config-file nodes.conf", fmt.Sprintf("cluster-port %d", bus),
			fmt.Sprintf("cluster-node-timeout %d", o.NodeTimeout.Milliseconds()),
			"cluster-replica-validity-factor 0", "cluster-allow-replica-migration no",
			"repl-diskless-sync-delay 0", "repl-ping-replica-period 1", "repl-backlog-size 1mb",
		}
		if o.Password != "" {
			server.Config = append(server.Config, "masterauth "+o.Password)
		}
		if o.TLS.used() {
			lines, err := o.TLS.lines(dir)
			if err != nil {
				return nil, err
			}
			server.Config = append(append(server.Config, "tls-cluster yes"), lines...)
		}
		if err := os.WriteFile(filepath.Join(dir, "bus"), []byte(strconv.Itoa(bus)), 0o600); err != nil {
			return nil, err
		}
		conf := filepath.Join(dir, "redis.conf")
		text := strings.Replace(server.conf(dir, port), "databases 4096\n", "", 1) // a cluster has only one database
		return []string{conf}, os.WriteFile(conf, []byte(text), 0o600)
	}
	return p
}

// busPort returns a cluster node's second port, on which nodes talk to each other.
func (s *Server) busPort() (int, error) {
	text, err := os.ReadFile(filepath.Join(s.dir, "bus"))
	if err != nil {
		return 0, fmt.Errorf("localserver: %w", err)
	}
	return strconv.Atoi(string(text))
}

// keep returns the plan for a server that needs its folder while it runs.
func keep(p plan) plan {
	p.files = true
	return p
}

func addresses(servers []*Server) string {
	var all []string
	for _, s := range servers {
		all = append(all, s.Addr())
	}
	return strings.Join(all, ",")
}

// closeAll closes all servers at the same time.
func closeAll(servers []*Server) {
	var wg sync.WaitGroup
	for _, s := range servers {
		wg.Go(s.Close)
	}
	wg.Wait()
}

func forgetAll(servers []*Server) (err error) {
	for _, s := range servers {
		err = errors.Join(err, s.Forget())
	}
	return err
}

// awaitInfo waits until a section of a server's answer to INFO contains all texts.
func awaitInfo(ctx context.Context, addr, password, section string, texts ...string) error {
	return awaitText(ctx, texts, func() (string, error) { return RedisCommand(ctx, addr, password, "INFO", section) })
}

// topologyTimeout bounds the time that servers may take to know each other. Sentinels announce themselves every 2 s.
const topologyTimeout = 60 * time.Second

func awaitText(ctx context.Context, texts []string, ask func() (string, error)) error {
	ctx, cancel := context.WithTimeout(ctx, topologyTimeout)
	defer cancel()
	for {
		got, err := ask()
		missing := ""
		for _, text := range texts {
			if !strings.Contains(got, text) {
				missing = text
			}
		}
		if err == nil && missing == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("localserver: no %q in %q: %w", missing, got, errors.Join(err, ctx.Err()))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// RedisCommand sends one command and returns the answer as text, with each item of an array on a line of its own.
func RedisCommand(ctx context.Context, addr, password string, args ...string) (string, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second)) // cannot fail on an open connection
	r := bufio.NewReader(c)
	commands := [][]string{args}
	if password != "" {
		commands = [][]string{{"AUTH", password}, args}
	}
	var answer string
	for _, words := range commands {
		line := fmt.Sprintf("*%d\r\n", len(words))
		for _, w := range words {
			line += fmt.Sprintf("$%d\r\n%s\r\n", len(w), w)
		}
		if _, err := io.WriteString(c, line); err != nil {
			return "", err
		}
		if answer, err = redisAnswer(r); err != nil {
			return "", fmt.Errorf("localserver: %s: %w", words[0], err)
		}
	}
	return answer, nil
}

func redisAnswer(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	kind, line := line[0], strings.TrimRight(line[1:], "\r\n")
	n, _ := strconv.Atoi(line)
	switch {
	case kind == '-':
		return "", errors.New(line)
	case kind == '$' && n >= 0:
		text := make([]byte, n+2)
		_, err := io.ReadFull(r, text)
		return string(text[:n]), err
	case kind == '*':
		var all strings.Builder
		for range n {
			item, err := redisAnswer(r)
			if err != nil {
				return "", err
			}
			all.WriteString(item + "\n")
		}
		return all.String(), nil
	}
	return line, nil
}
