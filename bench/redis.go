//go:build linux

package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"gatehouse/shared/localserver"
)

// measureRedis has redis-benchmark send INCRBYs to keys like the daemon's, 64 at a time, and takes
// the server's CPU time for each: what the same work costs Redis when nothing is wasted.
func (s *suite) measureRedis(ctx context.Context) error {
	program, err := localserver.Find("redis-benchmark")
	if err != nil {
		return err
	}
	commands := int(400_000 * min(1, s.time.Seconds()))
	_, port, _ := net.SplitHostPort(s.redis.Addr())
	before, err := readUsage(s.redis.PID())
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, "-h", "127.0.0.1", "-p", port, "-q",
		"-P", "64", "-c", "4", "-n", strconv.Itoa(commands), "-r", "10000",
		"INCRBY", "bench_api_key_k-__rand_int___1699920000", "1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("redis-benchmark: %w: %s", err, out)
	}
	after, err := readUsage(s.redis.PID())
	if err != nil {
		return err
	}
	s.incrby = append(s.incrby, float64((after.cpu-before.cpu).Microseconds())/float64(commands))
	return nil
}

// processed is how many commands a Redis has carried out since it started.
func processed(server *localserver.Server) (int, error) {
	c, err := net.DialTimeout("tcp", server.Addr(), time.Second)
	if err != nil {
		return 0, fmt.Errorf("redis: %w", err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Second))
	fmt.Fprint(c, "INFO stats\r\n")
	for lines := bufio.NewScanner(c); lines.Scan(); {
		if n, ok := strings.CutPrefix(lines.Text(), "total_commands_processed:"); ok {
			return strconv.Atoi(n)
		}
	}
	return 0, fmt.Errorf("redis: INFO says nothing of total_commands_processed")
}
