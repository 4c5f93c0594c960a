package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/source"
)

// check loads the configuration files of a folder as the daemon would and reports every problem of
// every file (spec 1.7): exit 0 when all is well, 1 when not. It ignores the daemon's environment
// unless -settings asks for that to be checked too.
func check(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("ratelimit check", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: ratelimit check [-merge_domain_configs] DIR\n       ratelimit check -settings [DIR]")
		flags.PrintDefaults()
	}
	dir := flags.String("config_dir", "", "the folder, instead of `DIR`")
	merge := flags.Bool("merge_domain_configs", false, "allow one domain in several files, as MERGE_DOMAIN_CONFIG does")
	withSettings := flags.Bool("settings", false, "check the settings in the environment too, with the certificates that they name, and the folder of theirs")
	if err := flags.Parse(args); err != nil {
		return flagExit(err)
	}
	var rules rulesConfig
	if *withSettings {
		c, ok := checkSettings(environ, stdout)
		if !ok {
			return exitFailed
		}
		rules = c.Rules
		*merge = *merge || rules.MergeDomains
		switch {
		case *dir != "" || flags.NArg() > 0:
		case rules.Type == typeXDS:
			fmt.Fprintf(stdout, "rules come from the control plane at %s and are not checked here\n", c.XDS.Server)
			return exitOK
		default:
			*dir = filepath.Join(rules.Root, rules.Subdirectory, rules.AppDirectory)
		}
	}
	if *dir == "" && flags.NArg() == 1 {
		*dir = flags.Arg(0)
	} else if *dir == "" || flags.NArg() > 0 {
		flags.Usage()
		return exitUsage
	}

	fmt.Fprintln(stdout, "checking rate limit configs...")
	fmt.Fprintf(stdout, "loading config directory: %s\n", *dir)
	files, skipped, unread := source.ReadDir(*dir, rules.IgnoreDotFiles)
	for _, err := range unread {
		fmt.Fprintf(stdout, "error loading rate limit configs: %v\n", err)
	}
	if len(skipped) > 0 {
		fmt.Fprintf(stdout, "warning: %s: %s\n", source.NotRead, strings.Join(skipped, " "))
	}
	if len(files)+len(unread) == 0 {
		fmt.Fprintf(stdout, "warning: no *.yaml or *.yml file in %s: nothing would be limited\n", *dir)
	}
	for _, f := range files {
		fmt.Fprintf(stdout, "opening config file: %s\n", f.Name)
	}
	_, warnings, err := limits.Load(ctx, files, limits.Options{NearRatio: 0.8, MergeDomains: *merge})
	for _, w := range warnings {
		fmt.Fprintf(stdout, "warning: %s\n", w)
	}
	if err != nil {
		reportProblems(stdout, err)
	}
	if err != nil || len(unread) > 0 {
		return exitFailed
	}
	fmt.Fprintln(stdout, "all rate limit configs ok")
	return exitOK
}

// checkSettings tells every mistake of an environment, as a start would.
func checkSettings(environ []string, w io.Writer) (c config, ok bool) {
	fmt.Fprintln(w, "checking settings...")
	c, report, err := loadConfig(environ)
	for _, warning := range report.Warnings {
		fmt.Fprintf(w, "warning: %s\n", warning)
	}
	if err != nil {
		fmt.Fprintf(w, "error in the settings: %v\n", err)
		return c, false
	}
	fmt.Fprintln(w, "all settings ok")
	return c, true
}

// reportProblems writes each problem of a refused set on a line of its own.
func reportProblems(w io.Writer, err error) {
	rejection, ok := errors.AsType[*limits.Rejection](err)
	if !ok {
		fmt.Fprintf(w, "error loading rate limit configs: %v\n", err)
		return
	}
	for _, p := range rejection.Problems {
		fmt.Fprintf(w, "error loading rate limit configs: %s\n", p)
	}
}
