// Package cli is the command line of the daemon: it parses the arguments, has each command in a file of its own, and
// returns the exit status.
package cli

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"gatehouse/shared/logging"
)

// These are the exit statuses. Wrong usage has a status of its own, so that scripts can distinguish it from a failure.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// Main runs the command that the arguments name, and returns the exit status. The first SIGINT or SIGTERM makes the
// command end; the second ends the process at once.
func Main() int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, program{name: filepath.Base(os.Args[0]), args: os.Args[1:], environ: os.Environ(),
			stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr})
	}()
	for range 2 {
		select {
		case status := <-done:
			return status
		case <-signals:
			cancel()
		}
	}
	return exitFailed
}

// program holds the input of one run of the program: arguments, environment and streams.
type program struct {
	name           string // name by which the program was called, possibly that of a link
	args, environ  []string
	file           string // value of the flag -config
	stdin          io.Reader
	stdout, stderr io.Writer
}

// usages holds the usage text of the program, auth.txt, and of each command whose flags do not say enough.
//
//go:embed usage
var usages embed.FS

// usage returns a usage text; "" if there is none.
func usage(name string) string {
	text, _ := usages.ReadFile("usage/" + name + ".txt")
	return string(text)
}

// commands maps the names of the commands to their functions.
var commands = map[string]func(*program, context.Context, []string) error{
	"serve": (*program).serve, "migrate": (*program).migrate, "check": (*program).check, "keys": (*program).keys,
	"admin": (*program).admin, "mail": (*program).mail, "takeover": (*program).takeover, "mirror": (*program).mirror,
	"redirect": (*program).redirect, "health": (*program).health, "openapi": (*program).openAPI,
	hashing: (*program).hashing, "version": (*program).version, "help": (*program).help,
}

// errUsage ends a command with exit status 2. The usage has been written already.
var errUsage = errors.New("usage")

// errSaid ends a command with exit status 1. The cause has been written already.
var errSaid = errors.New("said")

// run runs the whole program. It returns the exit status when the command is done or ctx has ended.
func run(ctx context.Context, p program) int {
	if p.name == "wget" {
		return p.status(p.wget(ctx))
	}
	for len(p.args) > 0 && strings.HasPrefix(p.args[0], "-") {
		name, value, given := strings.Cut(strings.TrimLeft(p.args[0], "-"), "=")
		switch name {
		case "config", "c":
			p.args = p.args[1:]
			if !given {
				if len(p.args) > 0 {
					value, p.args = p.args[0], p.args[1:]
				}
			}
			if value == "" {
				fmt.Fprint(p.stderr, "auth: -config needs a file\n", usage("auth"))
				return exitUsage
			}
			p.file = value
			continue
		case "version":
			p.args = []string{"version"}
		case "h", "help":
			p.args = []string{"help"}
		}
		break
	}
	command, rest := "serve", p.args
	if len(rest) > 0 {
		command, rest = rest[0], rest[1:]
	}
	if do := commands[command]; do != nil {
		text := usage(command)
		if text != "" && len(rest) > 0 && slices.Contains([]string{"-h", "-help", "--help", "help"}, rest[0]) {
			_, err := fmt.Fprint(p.stdout, text)
			return p.status(err)
		}
		return p.status(do(&p, ctx, rest))
	}
	kind := "command"
	if strings.HasPrefix(command, "-") {
		kind = "flag"
	}
	fmt.Fprintf(p.stderr, "auth: there is no %s %q\n%s", kind, command, usage("auth"))
	return exitUsage
}

// status returns the exit status for the error of a command. It writes the error, unless that has been done already.
func (p *program) status(err error) int {
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.Is(err, errUsage):
		return exitUsage
	case errors.Is(err, errSaid):
		return exitFailed
	}
	fmt.Fprintln(p.stderr, "auth:", logging.HideCredentials(err.Error()))
	return exitFailed
}

// parse parses the flags of a command, which may be before, after and between the arguments, but not after "--". The
// number of arguments must be between least and most, inclusive; if most is negative, there is no upper limit.
func (p *program) parse(f *flag.FlagSet, args []string, arguments string, least, most int) ([]string, error) {
	var said bytes.Buffer // help on request goes to standard output, usage errors to standard error
	own := flag.NewFlagSet(f.Name(), flag.ContinueOnError)
	f.VisitAll(func(one *flag.Flag) { own.Var(one.Value, one.Name, one.Usage) })
	f.Usage = func() {
		fmt.Fprintln(f.Output(), strings.TrimSpace("usage: auth "+f.Name()+" "+arguments))
		own.SetOutput(f.Output())
		own.PrintDefaults()
	}
	for _, name := range []string{"config", "c"} { // these flags may also be before the command
		f.Func(name, "settings file", func(value string) error {
			if value == "" {
				return errors.New("needs a file")
			}
			p.file = value
			return nil
		})
	}
	var rest []string
	for {
		f.SetOutput(&said)
		err := f.Parse(args)
		if errors.Is(err, flag.ErrHelp) {
			_, failed := said.WriteTo(p.stdout)
			return nil, cmp.Or(failed, err)
		}
		f.SetOutput(p.stderr)
		if err != nil {
			said.WriteTo(p.stderr)
			return nil, errUsage
		}
		read := args[:len(args)-f.NArg()]
		if f.NArg() == 0 || len(read) > 0 && read[len(read)-1] == "--" {
			rest = append(rest, f.Args()...)
			break
		}
		rest, args = append(rest, f.Arg(0)), f.Args()[1:]
	}
	if len(rest) < least || most >= 0 && len(rest) > most {
		f.Usage()
		return nil, errUsage
	}
	return rest, nil
}

// help runs the command "auth help".
func (p *program) help(context.Context, []string) error {
	_, err := fmt.Fprint(p.stdout, usage("auth"))
	return err
}

// misusedGroup writes the usage of a command that has sub-commands.
func (p *program) misusedGroup(name string) error {
	fmt.Fprint(p.stderr, usage(name))
	return errUsage
}

// misused writes what is wrong with the use of a command, and its usage.
func (p *program) misused(f *flag.FlagSet, format string, args ...any) error {
	fmt.Fprintf(p.stderr, "auth: %s: %s\n", f.Name(), fmt.Sprintf(format, args...))
	f.Usage()
	return errUsage
}
