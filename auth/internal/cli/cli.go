// Package cli is the command line: the arguments, the sub-commands, a file each, and the exit status.
package cli

import (
	"bytes"
	"context"
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

// Exit statuses. Bad usage has a status of its own, so that scripts can distinguish it from a failure.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// Main is the program: it runs the command that the arguments name and returns the exit status. The first SIGINT or
// SIGTERM ends the command, the second does not wait for its end.
func Main() int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, program{name: filepath.Base(os.Args[0]), args: os.Args[1:], environ: os.Environ(), stdin: os.Stdin, stdout: os.Stdout,
			stderr: os.Stderr})
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

// program is the input of a run of the program: arguments, environment and streams.
type program struct {
	name           string // the name by which the program was called, which may be that of a link
	args, environ  []string
	file           string // -config
	stdin          io.Reader
	stdout, stderr io.Writer
}

const usage = `usage: auth [-config FILE] [COMMAND]
       auth [serve [-skip-migrations]]     run the daemon
       auth migrate [-plan]                bring the database up to this version, or print what that takes
       auth check [-hooks]                 settings, database rights, keys, providers, SMTP; -hooks calls those in PostgreSQL
       auth keys list|rotate|revoke KID    the signing keys
       auth keys service [-role ROLE] [-exp 10y]
       auth admin create|list|get|password|role|ban|unban|delete|claim   users (-h for more)
       auth admin sessions|factors WHO     what a user has open, and ends it
       auth mail list|resend ID            the outbox
       auth mail preview|send-test         what mails look like, and whether they arrive (-h for more)
       auth takeover [-ahead|-dry-run|-abandon|-suggest]   bring the users of the replaced service along (-h for more)
       auth mirror install|check|drop|scrub   keep the former tables current for the application's SQL (-h for more)
       auth redirect test URL...           whether redirect_to may lead there, and why
       auth health [-timeout 2s] [URL]     ask the daemon on this host whether it is ready
       auth openapi                        the API as an OpenAPI 3.1 document
       auth version
Settings come from the environment and from .env or FILE; the environment wins.
`

// usages are the usage texts of commands with sub-commands.
var usages = map[string]string{"keys": keysUsage, "admin": adminUsage, "mail": mailUsage, "redirect": redirectUsage,
	"mirror": mirrorUsage}

// commands are the commands by their names.
var commands = map[string]func(*program, context.Context, []string) error{
	"serve": (*program).serve, "migrate": (*program).migrate, "check": (*program).check, "keys": (*program).keys,
	"admin": (*program).admin, "mail": (*program).mail, "takeover": (*program).takeover, "mirror": (*program).mirror,
	"redirect": (*program).redirect, "health": (*program).health, "openapi": (*program).openAPI,
	hashing: (*program).hashing,
}

// errUsage ends a command with exit status 2, after the usage was written.
var errUsage = errors.New("usage")

// errSaid ends a command with exit status 1, after the cause was written.
var errSaid = errors.New("said")

// run is the whole program. It returns the exit status when ctx has ended or the command is done.
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
				fmt.Fprint(p.stderr, "auth: -config needs a file\n", usage)
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
	if text, group := usages[command]; group &&
		len(rest) > 0 && slices.Contains([]string{"-h", "-help", "--help", "help"}, rest[0]) {
		fmt.Fprint(p.stdout, text)
		return exitOK
	}
	if do := commands[command]; do != nil {
		return p.status(do(&p, ctx, rest))
	}
	switch command {
	case "version":
		p.version()
		return exitOK
	case "help":
		fmt.Fprint(p.stdout, usage)
		return exitOK
	}
	kind := "command"
	if strings.HasPrefix(command, "-") {
		kind = "flag"
	}
	fmt.Fprintf(p.stderr, "auth: there is no %s %q\n%s", kind, command, usage)
	return exitUsage
}

// status returns the exit status for the result of a command. It writes the error, unless that was written already.
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

// parse reads a command's flags, which may be before, after and between the arguments, but not after "--". least and
// most bound the number of arguments; most < 0: any number.
func (p *program) parse(f *flag.FlagSet, args []string, arguments string, least, most int) ([]string, error) {
	var said bytes.Buffer // help that was requested goes to standard output, usage errors to standard error
	own := flag.NewFlagSet(f.Name(), flag.ContinueOnError)
	f.VisitAll(func(one *flag.Flag) { own.Var(one.Value, one.Name, one.Usage) })
	f.Usage = func() {
		fmt.Fprintln(f.Output(), strings.TrimSpace("usage: auth "+f.Name()+" "+arguments))
		own.SetOutput(f.Output())
		own.PrintDefaults()
	}
	for _, name := range []string{"config", "c"} { // may also be before the command
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
			said.WriteTo(p.stdout)
			return nil, err
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

// misused reports the wrong use of a command.
func (p *program) misused(f *flag.FlagSet, format string, args ...any) error {
	fmt.Fprintf(p.stderr, "auth: %s: %s\n", f.Name(), fmt.Sprintf(format, args...))
	f.Usage()
	return errUsage
}
