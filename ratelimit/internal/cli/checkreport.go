package cli

import (
	"errors"
	"fmt"
	"io"

	"gatehouse/ratelimit/internal/limits"
)

// checkReport is the result of check. As text, each line is written as it is found; as JSON, everything at the end.
type checkReport struct {
	OK       bool             `json:"ok"`
	Problems []limits.Problem `json:"problems"`
	Warnings []limits.Problem `json:"warnings"`

	text    io.Writer // discards with -format json
	lenient bool      // as in checkCall
}

func newCheckReport(text io.Writer) *checkReport {
	return &checkReport{Problems: []limits.Problem{}, Warnings: []limits.Problem{}, text: text}
}

func (r *checkReport) progress(format string, args ...any) { fmt.Fprintf(r.text, format, args...) }

// unread notes a file or folder that could not be read.
func (r *checkReport) unread(path string, err error) {
	r.progress("error loading rate limit configs: %v\n", err)
	r.Problems = append(r.Problems, limits.Problem{File: path, Message: err.Error()})
}

// odd notes a warning about a folder.
func (r *checkReport) odd(dir, message string) {
	r.progress("warning: %s\n", message)
	r.Warnings = append(r.Warnings, limits.Problem{File: dir, Message: message})
}

// loaded notes the outcome of loading the rules.
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
