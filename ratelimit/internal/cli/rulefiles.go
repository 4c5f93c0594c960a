package cli

import (
	"fmt"
	"io"
	"os"
	"strings"

	"gatehouse/ratelimit/internal/limits/rulefile"
	"gatehouse/ratelimit/internal/source"
)

// stdinName is what messages call standard input.
const stdinName = "<stdin>"

// readRules reads the files, folders and standard input ("-") that arguments of check name, and says
// what it reads. ok is false when something could not be read.
func readRules(paths []string, ignoreDotFiles bool, w io.Writer) (files []rulefile.File, ok bool) {
	ok = true
	for _, path := range paths {
		if isDirectory(path) || path != "-" && !exists(path) {
			found, good := readFolder(path, ignoreDotFiles, w)
			files, ok = append(files, found...), ok && good
			continue
		}
		name, text, err := readOne(path)
		if err != nil {
			fmt.Fprintf(w, "error loading rate limit configs: %v\n", err)
			ok = false
			continue
		}
		fmt.Fprintf(w, "opening config file: %s\n", name)
		files = append(files, rulefile.File{Name: name, Text: text})
	}
	return files, ok
}

// readFolder reads a folder as the daemon would.
func readFolder(dir string, ignoreDotFiles bool, w io.Writer) (files []rulefile.File, ok bool) {
	fmt.Fprintf(w, "loading config directory: %s\n", dir)
	files, skipped, leftovers, unread := source.ReadDir(dir, ignoreDotFiles)
	for _, err := range unread {
		fmt.Fprintf(w, "error loading rate limit configs: %v\n", err)
	}
	if len(skipped) > 0 {
		fmt.Fprintf(w, "warning: %s: %s\n", source.NotRead, strings.Join(skipped, " "))
	}
	for _, name := range leftovers {
		fmt.Fprintf(w, "warning: %s: %s\n", source.Leftover, name)
	}
	if len(files)+len(unread) == 0 {
		fmt.Fprintf(w, "warning: no *.yaml or *.yml file in %s: nothing would be limited\n", dir)
	}
	for _, f := range files {
		fmt.Fprintf(w, "opening config file: %s\n", f.Name)
	}
	return files, len(unread) == 0
}

// readOne reads a file of any name, or standard input. More than a file of rules may have is not read.
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
	text, err = io.ReadAll(io.LimitReader(in, rulefile.MaxFileBytes+1)) // one more is refused with its reason
	if err != nil {
		return name, nil, fmt.Errorf("read %s: %w", name, err)
	}
	return name, text, nil
}

func isDirectory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
