package limits

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"gatehouse/ratelimit/internal/limits/calendar"
)

// Problem is an error or a warning about the configuration: where it is, the text found, and what may be written
// instead.
type Problem struct {
	File string `json:"file"`
	// Line and Column count from 1; both are 0 for an xDS resource, which has no lines.
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
	Domain string `json:"domain,omitempty"`
	// Path is the dotted path of the configured descriptor: key_value.key. A descriptor without a key is written as
	// descriptors[i], counted from 0.
	Path string `json:"path,omitempty"`
	// Text is the wrong key or value, as it is written in the file or resource.
	Text    string `json:"text,omitempty"`
	Message string `json:"message"`
}

// String returns the problem as one line: file:line:column: domain "d", descriptor a_b.c: message.
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", p.Line, p.Column)
	}
	if p.Domain != "" {
		fmt.Fprintf(&b, ": domain %s", Quote(p.Domain))
		if p.Path != "" {
			b.WriteString(", descriptor ")
			b.WriteString(p.Path)
		}
	} else if p.Path != "" {
		b.WriteString(": descriptor ")
		b.WriteString(p.Path)
	}
	b.WriteString(": ")
	b.WriteString(p.Message)
	return b.String()
}

// Rejection is the error for a configuration that was refused: every problem in every file.
type Rejection struct{ Problems []Problem }

// Error returns all problems, one per line.
func (r *Rejection) Error() string {
	lines := make([]string, len(r.Problems))
	for i, p := range r.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// Report gathers the problems and warnings of one load of a configuration. By its context it also stops a load whose
// result is no longer wanted.
type Report struct {
	problems, warnings []Problem
	unlisted           int // number of problems beyond maxProblems, which are only counted
	suggestions        int // number of names suggested so far
	compared           int // number of names compared so far to find suggestions

	ctx    context.Context
	steps  int
	zones  map[string]*time.Location // time zones loaded for calendars; nil for a name that is no zone
	paced  bool                      // the load pauses now and then, see Options.Paced
	rested time.Time                 // when the last pause of a paced load ended; zero before the first pause
}

// NewReport returns the report of a load that stops when ctx ends. paced is as in Options.
func NewReport(ctx context.Context, paced bool) *Report { return &Report{ctx: ctx, paced: paced} }

// zone returns the time zone of a name in the configuration. It loads each zone once per report. ok is false if the
// name is no zone.
func (r *Report) zone(name string) (zone *time.Location, ok bool) {
	zone, known := r.zones[name]
	if !known {
		zone, _ = calendar.Zone(name)
		if r.zones == nil {
			r.zones = map[string]*time.Location{}
		}
		r.zones[name] = zone
	}
	return zone, zone != nil
}

// Another returns an empty report for the same load. It is for a part that is read quickly first, and a second time
// with the real report if the first reading finds a problem.
func (r *Report) Another() *Report { return NewReport(r.ctx, false) }

// Done is closed when the result of the load is no longer wanted.
func (r *Report) Done() <-chan struct{} { return r.ctx.Done() }

// stepsPerPause is the number of steps, each about a microsecond long, that a load makes between two pauses.
const stepsPerPause = 64

// A paced load sleeps for restTime after each workTime of work. A shorter sleep is rounded up to about a millisecond by
// the operating system, so restTime is not shorter.
const (
	workTime = 600 * time.Microsecond
	restTime = time.Millisecond
)

// Step is called at each step of a load, and returns false if the load must stop. Now and then it yields the processor
// to requests, and it sleeps if the load is paced: a reload is never urgent.
func (r *Report) Step() bool {
	if r.steps++; r.steps%stepsPerPause == 0 {
		r.pause()
	}
	return !r.Stopped()
}

func (r *Report) pause() {
	if !r.paced {
		runtime.Gosched()
		return
	}
	if now := time.Now(); now.Sub(r.rested) < workTime {
		runtime.Gosched()
		return
	}
	time.Sleep(restTime)
	r.rested = time.Now()
}

// Stopped reports whether the load must stop because its result is no longer wanted.
func (r *Report) Stopped() bool { return r.ctx.Err() != nil }

// abandoned returns the error for a load that was stopped.
func (r *Report) abandoned() error {
	return fmt.Errorf("limits: the load was abandoned: %w", context.Cause(r.ctx))
}

const (
	// maxProblems bounds the problems in a report: a file that holds something other than rules could have any number.
	maxProblems = 1000
	// maxText bounds the length of Problem.Text.
	maxText = 256
)

// Place is where in the configuration a problem is.
type Place struct {
	File   string
	Pos    Pos
	Domain string
	Path   string
}

// Problem notes an error, because of which the configuration is refused. text is the wrong text.
func (r *Report) Problem(at Place, text, format string, args ...any) {
	if len(r.problems) == maxProblems {
		r.unlisted++
		return
	}
	r.problems = append(r.problems, at.say(text, format, args))
}

// full reports whether the report keeps no further warnings, so that callers need not look for any.
func (r *Report) full() bool { return len(r.warnings) == maxProblems }

// Warning notes something that is valid but probably an error. text is the text in question.
func (r *Report) Warning(at Place, text, format string, args ...any) {
	if !r.full() {
		r.warnings = append(r.warnings, at.say(text, format, args))
	}
}

func (at Place) say(text, format string, args []any) Problem {
	return Problem{
		File: at.File, Line: int(at.Pos.Line), Column: int(at.Pos.Column),
		Domain: at.Domain, Path: at.Path, Text: text[:min(len(text), maxText)], Message: fmt.Sprintf(format, args...),
	}
}

// rejection returns the problems found as an error, or nil if there are no problems.
func (r *Report) rejection() error {
	if len(r.problems) == 0 {
		return nil
	}
	sortProblems(r.problems)
	if r.unlisted > 0 {
		r.problems = append(r.problems,
			Problem{File: r.problems[0].File, Message: fmt.Sprintf("%d further problems are not listed", r.unlisted)})
	}
	return &Rejection{r.problems}
}

func sortProblems(ps []Problem) {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}

// MaxQuoted is the number of bytes up to which messages repeat a text in full.
const MaxQuoted = 80

// Quote returns a text of the configuration as messages show it: quoted, on one line and of bounded length.
func Quote(s string) string {
	if len(s) > MaxQuoted {
		return strconv.Quote(s[:MaxQuoted]) + "…"
	}
	return strconv.Quote(s)
}

// OneLine returns a text unchanged if it is short and has no control characters; otherwise it returns Quote of it.
func OneLine(s string) string {
	if len(s) > MaxQuoted || strings.ContainsFunc(s, unicode.IsControl) {
		return Quote(s)
	}
	return s
}

// DidYouMean returns the end of a message about an unknown word, which suggests the known word with the nearest
// spelling. It returns the empty text if no known word is near.
func DidYouMean(word string, known []string) string {
	compared := 0
	return nearest(word, known, &compared, math.MaxInt)
}

// These constants bound the suggestions of one load, since a generated file may refer to 100,000 rules that do not
// exist.
const (
	maxSuggestions = 100
	maxCompared    = 1_000_000 // names compared; each comparison takes 0.2 µs
)

// suggest is DidYouMean with the bounds on a load's suggestions, for names in a configuration.
func (r *Report) suggest(word string, known []string) string {
	if r.suggestions == maxSuggestions || r.compared >= maxCompared {
		return ""
	}
	r.suggestions++
	return nearest(word, known, &r.compared, maxCompared)
}

// nearest returns the end of a message about an unknown word, as DidYouMean does. compared and atMost are as in
// nearestWord.
func nearest(word string, known []string, compared *int, atMost int) string {
	best := nearestWord(word, known, compared, atMost)
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", OneLine(best))
}

// nearestWord returns the known word whose spelling is nearest to word; empty if none is near. It adds to compared the
// number of words that it compares, and stops when compared reaches atMost.
func nearestWord(word string, known []string, compared *int, atMost int) string {
	if len(word) > maxNear {
		return ""
	}
	word = strings.ToLower(word)
	best, bestDistance := "", 1+min(len(word)/2, 3)
	for _, k := range known {
		if len(k)-len(word) >= bestDistance || len(word)-len(k) >= bestDistance {
			continue
		}
		if *compared >= atMost {
			break
		}
		*compared++
		if d := distance(word, k, bestDistance); d < bestDistance {
			best, bestDistance = k, d
		}
	}
	return best
}

// maxNear is the length in bytes of the longest word for which a similar word is searched.
const maxNear = 40

// distance returns the number of bytes that must be added, removed, changed or swapped with their neighbours to turn a
// into b. If the number is at least limit, it may return any number from limit on. a and b are at most three bytes
// longer than maxNear.
func distance(a, b string, limit int) int {
	var rows [3][maxNear + 5]int
	before, row, next := &rows[0], &rows[1], &rows[2]
	for j := range len(b) + 1 {
		row[j] = j
	}
	least := 0 // the least number in row
	for i := 1; i <= len(a); i++ {
		next[0] = i
		leastBefore := least
		least = i
		for j := 1; j <= len(b); j++ {
			change := row[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			next[j] = min(change, row[j]+1, next[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], before[j-2]+1)
			}
			least = min(least, next[j])
		}
		if least >= limit && leastBefore >= limit {
			return limit // all later rows are at least limit: a swap refers two rows back, no further
		}
		before, row, next = row, next, before
	}
	return row[len(b)]
}

// Allow returns the words of a message that list the allowed words.
func Allow(words []string) string {
	if len(words) == 1 {
		return "only " + words[0] + " is allowed"
	}
	return "allowed are " + OrList(words)
}

// Choices returns the end of a message about an unknown word: the known word with the nearest spelling, if one is near,
// and the words that are allowed in that place.
func Choices(word string, known, allowed []string) string {
	if near := DidYouMean(word, known); near != "" {
		list := Allow(allowed)
		return near + " " + strings.ToUpper(list[:1]) + list[1:]
	}
	return "; " + Allow(allowed)
}

// OrList joins words for a sentence: "a, b or c".
func OrList(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}
