package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"gatehouse/ratelimit/internal/config"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/limits/rulefile"
	"gatehouse/ratelimit/internal/source"
)

const checkUsage = "usage: ratelimit check [-format json] [-merge_domain_configs] FILE|-|DIR ...\n" +
	"       ratelimit check -settings [DIR]\n" +
	"example: ratelimit check /etc/ratelimit/config\n"

// checkCall has the inputs of the command check.
type checkCall struct {
	args, environ []string
	// replaced is set if the command is run as ratelimit_config_check, whose only path is -config_dir.
	replaced bool
}

// check is the command check. It loads files, standard input and folders as one set of rules, as the daemon would, and
// reports every problem in every file. It returns 0 if there is no problem, otherwise 1. It ignores the environment
// unless -settings is given, which checks the settings in the environment, too.
func check(ctx context.Context, call checkCall, stdout, stderr io.Writer) int {
	flags := newFlags("check", checkUsage, stderr)
	dir := flags.String("config_dir", "", "a folder, instead of `DIR`")
	options := limits.Options{Settings: limits.Settings{NearRatio: 0.8}}
	mergeFlag(flags, &options.Settings)
	withSettings := flags.Bool("settings", false,
		"check the settings in the environment too, with the certificates that they name, and the folder of theirs")
	format := flags.String("format", "text", "text or json")
	if err := flags.Parse(call.args); err != nil {
		return flagExit(err)
	}
	asJSON := *format == "json"
	if !asJSON && *format != "text" || asJSON && *withSettings {
		flags.Usage()
		return exitUsage
	}
	var files source.Settings
	if *withSettings {
		c, ok := checkSettings(call.environ, &options, stdout)
		if !ok {
			return exitFailed
		}
		files = c.Rules.Files
		switch {
		case *dir != "" || flags.NArg() > 0:
		case c.Rules.Type == config.TypeXDS:
			fmt.Fprintf(stdout, "rules come from the control plane at %s and are not checked here\n", c.XDS.Client.Target)
			return exitOK
		default:
			*dir = filepath.Join(files.Root, files.Subdirectory, files.AppDirectory)
		}
	}
	report, paths := newCheckReport(stdout), flags.Args()
	report.replaced, report.settings = call.replaced, *withSettings
	report.folder = call.replaced || *withSettings || *dir != ""
	switch {
	case call.replaced:
		paths = []string{*dir}
	case *dir != "":
		paths = append(paths, *dir)
	}
	if len(paths) == 0 || report.folder && len(paths) > 1 {
		flags.Usage()
		return exitUsage
	}
	if info, err := os.Stat(paths[0]); *withSettings && err == nil && !info.IsDir() {
		fmt.Fprintf(stderr, "ratelimit check: -settings takes a folder, not %s\n", paths[0])
		return exitUsage
	}
	if asJSON {
		report.text = io.Discard
	}
	checkRules(ctx, paths, files.IgnoreDotFiles, options, report)
	if asJSON {
		if err := writeJSON(stdout, report); err != nil {
			return failed("check", err, stderr)
		}
	}
	if !report.OK {
		return exitFailed
	}
	report.progress("all rate limit configs ok\n")
	return exitOK
}

// checkRules loads the rules in all paths as one set and records the outcome in report.
func checkRules(ctx context.Context, paths []string, ignoreDotFiles bool, options limits.Options, report *checkReport) {
	report.progress("checking rate limit configs...\n")
	texts, ok := readRules(ctx, paths, ignoreDotFiles, report)
	_, warnings, err := rulefile.Load(ctx, texts, options)
	report.loaded(warnings, err)
	report.OK = ok && err == nil
}

// checkSettings reports every error in the settings of an environment, as a start of the daemon would. It sets in
// options the settings for the rules.
func checkSettings(environ []string, options *limits.Options, w io.Writer) (c config.Config, ok bool) {
	fmt.Fprintln(w, "checking settings...")
	c, report, err := config.Load(environ)
	for _, warning := range report.Warnings {
		fmt.Fprintf(w, "warning: %s\n", warning)
	}
	if err != nil {
		fmt.Fprintf(w, "error in the settings: %v\n", err)
		return c, false
	}
	options.MergeDomains = options.MergeDomains || c.Counting.Limits.MergeDomains
	options.Memcached = c.Counting.Backend == config.BackendMemcache
	fmt.Fprintln(w, "all settings ok")
	return c, true
}

// reportProblems writes each problem of refused rules on a line of its own.
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

// checkReport is the result of the command check. As text, each line is written when it is found; as JSON, everything
// is written at the end.
type checkReport struct {
	OK       bool             `json:"ok"`
	Problems []limits.Problem `json:"problems"`
	Warnings []limits.Problem `json:"warnings"`

	text               io.Writer // io.Discard with -format json
	replaced, settings bool      // as in checkCall; -settings is given
	folder             bool      // the path is a folder, even if there is no such folder
}

func newCheckReport(text io.Writer) *checkReport {
	return &checkReport{Problems: []limits.Problem{}, Warnings: []limits.Problem{}, text: text}
}

func (r *checkReport) progress(format string, args ...any) { fmt.Fprintf(r.text, format, args...) }

// unread records a file or folder that could not be read.
func (r *checkReport) unread(path string, err error) {
	r.progress("error loading rate limit configs: %v\n", err)
	r.Problems = append(r.Problems, limits.Problem{File: path, Message: err.Error()})
}

// odd records a warning about a folder.
func (r *checkReport) odd(dir, message string) {
	r.progress("warning: %s\n", message)
	r.Warnings = append(r.Warnings, limits.Problem{File: dir, Message: message})
}

// loaded records the outcome of loading the rules.
func (r *checkReport) loaded(warnings []limits.Problem, err error) {
	for _, w := range warnings {
		r.progress("warning: %s\n", w)
	}
	r.Warnings = append(r.Warnings, warnings...)
	if err == nil {
		return
	}
	reportProblems(r.text, err)
	if rejection, ok := errors.AsType[*limits.Rejection](err); ok {
		r.Problems = append(r.Problems, rejection.Problems...)
	} else {
		r.Problems = append(r.Problems, limits.Problem{Message: err.Error()})
	}
}
