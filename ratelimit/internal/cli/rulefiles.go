package cli

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/limits/rulefile"
	"gatehouse/ratelimit/internal/source"
)

// stdinName is the name that messages give to standard input.
const stdinName = "<stdin>"

// readRules reads the rule files that the arguments of the command check name: files, folders, and - for standard
// input. It prints the names of what it reads. ok is false if something could not be read.
func readRules(
	ctx context.Context, paths []string, ignoreDotFiles bool, w *checkReport,
) (files []rulefile.File, ok bool) {
	ok = true
	for _, path := range paths {
		if w.folder || isDirectory(path) {
			found, good := readFolder(path, ignoreDotFiles, w)
			files, ok = append(files, found...), ok && good
			continue
		}
		name, text, err := readOne(path)
		if err != nil {
			w.unread(path, err)
			ok = false
			continue
		}
		found, passed, err := rulefile.Unpack(ctx, rulefile.File{Name: name, Text: text})
		if err != nil {
			w.unread(name, fmt.Errorf("%s: %w", name, err))
			ok = false
			continue
		}
		if len(passed) > 0 {
			w.progress("passed over in %s: %s\n", name, strings.Join(passed, ", "))
		}
		for _, f := range found {
			w.progress("opening config file: %s\n", f.Name)
		}
		files = append(files, found...)
	}
	return files, ok
}

// readFolder reads the rule files in a folder as the daemon would, and names each by its path. For
// ratelimit_config_check, a sub-directory cannot be read, as in envoyproxy/ratelimit's program.
func readFolder(dir string, ignoreDotFiles bool, w *checkReport) (files []rulefile.File, ok bool) {
	w.progress("loading config directory: %s\n", dir)
	files, skipped, leftovers, unread := source.ReadDir(dir, ignoreDotFiles)
	for i := range files {
		files[i].Name = filepath.Join(dir, files[i].Name)
		w.progress("opening config file: %s\n", files[i].Name)
	}
	for i, name := range skipped {
		skipped[i] = filepath.Join(dir, name)
		if w.replaced && strings.HasSuffix(name, "/") {
			unread = append(unread, &fs.PathError{Op: "read", Path: skipped[i], Err: syscall.EISDIR})
		}
	}
	for _, err := range unread {
		w.unread(dir, err)
	}
	if len(skipped) > 0 {
		w.odd(dir, source.NotRead+": "+strings.Join(skipped, " "))
	}
	for _, name := range leftovers {
		w.odd(dir, source.Leftover+": "+filepath.Join(dir, name))
	}
	if len(files)+len(unread) == 0 {
		const nothing = "no *.yaml or *.yml file in %s: nothing would be limited"
		if !w.replaced && !w.settings {
			w.unread(dir, fmt.Errorf(nothing+"; name the folder that holds the rules", dir))
			return nil, false
		}
		w.odd(dir, fmt.Sprintf(nothing, dir))
	}
	return files, len(unread) == 0
}

// loadRules loads the rules in a file or folder for a command. If they cannot be loaded, it prints the reason; the
// command then returns exitUsage.
func loadRules(
	ctx context.Context, command, path string, options limits.Options, stderr io.Writer,
) (rules *limits.Rules, ok bool) {
	fail := func(err error) (*limits.Rules, bool) {
		fmt.Fprintf(stderr, "ratelimit %s: %v\n", command, err)
		return nil, false
	}
	if path == "-" {
		return fail(errors.New("rules come from a file or a folder, not from standard input"))
	}
	var files []rulefile.File
	if isDirectory(path) {
		found, skipped, _, unread := source.ReadDir(path, false)
		if len(skipped) > 0 {
			fmt.Fprintf(stderr, "ratelimit %s: %s: %s\n", command, source.NotRead, strings.Join(skipped, " "))
		}
		if len(unread) > 0 {
			return fail(errors.Join(unread...))
		}
		files = found
	} else {
		name, text, err := readOne(path)
		if err != nil {
			return fail(err)
		}
		files = []rulefile.File{{Name: name, Text: text}}
	}
	options.NearRatio = 0.8 // the default of NEAR_LIMIT_RATIO
	rules, _, err := rulefile.Load(ctx, files, options)
	if err != nil {
		reportProblems(stderr, err)
		return nil, false
	}
	return rules, true
}

// readOne reads one file, whatever its name, or standard input. It stops after the greatest size that a rule file may
// have.
func readOne(path string) (name string, text []byte, err error) {
	in := io.Reader(os.Stdin)
	name = stdinName
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return path, nil, err
		}
		defer file.Close()
		in, name = file, path
	}
	// Read one byte more than a rule file may have, so that loading reports that the file is too large.
	text, err = io.ReadAll(io.LimitReader(in, rulefile.MaxFileBytes+1))
	if err != nil {
		return name, nil, fmt.Errorf("read %s: %w", name, err)
	}
	return name, text, nil
}

func isDirectory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// rulesSchema is the JSON Schema of rule files, for editors. It describes keys, types, bounds, units, algorithms, and
// which keys exclude each other. It does not describe time zones, prefixes, and rules that depend on other entries,
// which the command check checks.
//
//go:embed schema.json
var rulesSchema string

// schema is the command schema, which prints rulesSchema.
func schema(args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 {
		if isHelp(args) {
			fmt.Fprintln(stdout, "usage: ratelimit schema   print the JSON Schema of rule files")
			fmt.Fprintln(stdout, "example: ratelimit schema > rules.schema.json")
			return exitOK
		}
		fmt.Fprintf(stderr, "ratelimit: schema takes no arguments; got %q\nusage: ratelimit schema\n", args)
		return exitUsage
	}
	if _, err := io.WriteString(stdout, rulesSchema); err != nil {
		return failed("schema", err, stderr)
	}
	return exitOK
}
