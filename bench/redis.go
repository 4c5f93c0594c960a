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

// processed is how many commands a Redis or memcached has carried out since it started; a look-up of
// several keys in memcached counts as so many.
func processed(server *localserver.Server) (int, error) {
	c, err := net.DialTimeout("tcp", server.Addr(), time.Second)
	if err != nil {
		return 0, fmt.Errorf("redis: %w", err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Second))
	fmt.Fprint(c, "INFO stats\r\n")
	sum := 0
	for lines := bufio.NewScanner(c); lines.Scan(); {
		line := lines.Text()
		if n, ok := strings.CutPrefix(line, "total_commands_processed:"); ok {
			return strconv.Atoi(n)
		}
		switch fields := strings.Fields(line); {
		case line == "ERROR": // memcached has another word for it
			fmt.Fprint(c, "stats\r\n")
		case line == "END":
			return sum, nil
		case len(fields) == 3 && fields[0] == "STAT":
			switch fields[1] {
			case "cmd_get", "cmd_set", "incr_hits", "incr_misses", "decr_hits", "decr_misses":
				n, err := strconv.Atoi(fields[2])
				if err != nil {
					return 0, fmt.Errorf("memcached: %w", err)
				}
				sum += n
			}
		}
	}
	return 0, fmt.Errorf("the store says nothing of its commands")
}
