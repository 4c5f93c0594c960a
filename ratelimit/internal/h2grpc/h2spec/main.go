// Command h2spec runs the conformance tests of github.com/summerwind/h2spec against a server, and prints a line of JSON
// for each. It is a module of its own, so that the daemons' go.mod knows nothing of it.
package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/summerwind/h2spec/config"
	"github.com/summerwind/h2spec/generic"
	"github.com/summerwind/h2spec/hpack"
	"github.com/summerwind/h2spec/http2"
	"github.com/summerwind/h2spec/spec"
)

// result is one test.
type result struct {
	ID, Test        string
	Failed, Skipped bool
	Expected, Got   string
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "h2spec:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("got %q, want the address of a server", args)
	}
	host, port, err := net.SplitHostPort(args[0])
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	os.Stdout = os.Stderr // h2spec prints its progress
	c := &config.Config{Host: host, Port: n, Path: "/", Timeout: 2 * time.Second, MaxHeaderLen: 4000, Strict: true}
	for _, group := range []*spec.TestGroup{generic.Spec(), http2.Spec(), hpack.Spec()} {
		group.Test(c)
		if err := report(out, group); err != nil {
			return err
		}
	}
	return nil
}

// report prints the results of a group and of those in it.
func report(out *json.Encoder, group *spec.TestGroup) error {
	for _, test := range append(group.Tests, group.StrictTests...) {
		if test.Result == nil {
			continue
		}
		r := result{
			ID: fmt.Sprintf("%s/%d", group.ID(), test.Result.Sequence), Test: test.Desc,
			Failed: test.Result.Failed, Skipped: test.Result.Skipped,
		}
		if e, ok := test.Result.Error.(*spec.TestError); ok {
			r.Expected, r.Got = strings.Join(e.Expected, " or "), e.Actual
		} else if test.Result.Error != nil {
			r.Got = test.Result.Error.Error()
		}
		if err := out.Encode(r); err != nil {
			return err
		}
	}
	for _, group := range group.Groups {
		if err := report(out, group); err != nil {
			return err
		}
	}
	return nil
}
