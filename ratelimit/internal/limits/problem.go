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

// Problem is one thing wrong with, or odd about, the configuration: where it is, what stands there
// and what may stand there instead.
type Problem struct {
	File string `json:"file"`
	// Line and Column count from 1; 0 where the source has no lines (an xDS resource).
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
	Domain string `json:"domain,omitempty"`
	// Path is the descriptor, dotted: key_value.key. A descriptor without a key shows as
	// descriptors[i], counted from 0.
	Path string `json:"path,omitempty"`
	// Text is the offending key or value as it stands in the source.
	Text    string `json:"text,omitempty"`
	Message string `json:"message"`
}

// String is one line: file:line:column: domain "d", descriptor a_b.c: message.
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

// Rejection is the error of a set of files that was refused: every problem of every file.
type Rejection struct{ Problems []Problem }

// Error is all problems, one a line.
func (r *Rejection) Error() string {
	lines := make([]string, len(r.Problems))
	for i, p := range r.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// Report gathers the problems and warnings of one load, and knows whether it is still wanted.
type Report struct {
	problems, warnings []Problem
	unlisted           int // problems beyond maxProblems
	suggestions        int // names suggested so far
	compared           int // names compared for them

	ctx    context.Context
	steps  int
	zones  map[string]*time.Location // loaded for calendars; nil entries are no zones
	paced  bool                      // Options.Paced
	rested time.Time                 // when the last rest ended; zero before the first pause
}

// NewReport is the report of a load that ends with ctx. paced is as of Options.
func NewReport(ctx context.Context, paced bool) *Report { return &Report{ctx: ctx, paced: paced} }

// zone is a time zone of the configuration, each loaded once a load; ok is false for names of none.
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

// Another is a report of the same load for what is read a second time if there is anything to report.
func (r *Report) Another() *Report { return NewReport(r.ctx, false) }

// Done is closed when the result of the load is no longer wanted.
func (r *Report) Done() <-chan struct{} { return r.ctx.Done() }

// stepsPerPause is how many steps of a load, each a microsecond or so, are made between two pauses.
const stepsPerPause = 64

// A paced load sleeps for restTime after each workTime of work. The operating system rounds a shorter sleep up to
// about a millisecond.
const (
	workTime = 600 * time.Microsecond
	restTime = time.Millisecond
)

// Step is called at each step of a load and reports whether to go on. It yields the processor to requests that
// wait for one, and rests if the load is paced: a reload is never urgent.
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

// Stopped reports whether the result of the load is no longer wanted.
func (r *Report) Stopped() bool { return r.ctx.Err() != nil }

// abandoned is the error of a load that was stopped.
func (r *Report) abandoned() error {
	return fmt.Errorf("limits: the load was abandoned: %w", context.Cause(r.ctx))
}

const (
	// maxProblems bounds a report: a file of another kind could fill it without end.
	maxProblems = 1000
	// maxText bounds what Problem.Text keeps of an offending text.
	maxText = 256
)

// Place says where in the configuration a problem is.
type Place struct {
	File   string
	Pos    Pos
	Domain string
	Path   string
}

// Problem notes something that the set is refused for. text is what stands there.
func (r *Report) Problem(at Place, text, format string, args ...any) {
	if len(r.problems) == maxProblems {
		r.unlisted++
		return
	}
	r.problems = append(r.problems, at.say(text, format, args))
}

// full says that no further warning is kept, so that finding one is of no use.
func (r *Report) full() bool { return len(r.warnings) == maxProblems }

// Warning notes something odd.
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

// rejection is the error of the problems found, nil if there are none.
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

// MaxQuoted is how many bytes of a text a message repeats.
const MaxQuoted = 80

// Quote shows a text of the configuration in a message: on one line and of bounded length.
func Quote(s string) string {
	if len(s) > MaxQuoted {
		return strconv.Quote(s[:MaxQuoted]) + "…"
	}
	return strconv.Quote(s)
}

// OneLine is a text as it stands, or quoted if it is long or would spoil the line.
func OneLine(s string) string {
	if len(s) > MaxQuoted || strings.ContainsFunc(s, unicode.IsControl) {
		return Quote(s)
	}
	return s
}

// DidYouMean is the tail of a message about an unknown word: the nearest known one, or nothing
// when none is near.
func DidYouMean(word string, known []string) string {
	compared := 0
	return nearest(word, known, &compared, math.MaxInt)
}

// What a load may spend on suggestions: a generated file may name 100,000 rules that are not there.
const (
	maxSuggestions = 100
	maxCompared    = 1_000_000 // names, 0.2 µs each
)

// suggest is DidYouMean for the names of a configuration, while the load can afford it.
func (r *Report) suggest(word string, known []string) string {
	if r.suggestions == maxSuggestions || r.compared >= maxCompared {
		return ""
	}
	r.suggestions++
	return nearest(word, known, &r.compared, maxCompared)
}

// nearest is the tail of a message about an unknown word, nothing when no known one is near.
func nearest(word string, known []string, compared *int, atMost int) string {
	best := nearestWord(word, known, compared, atMost)
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", OneLine(best))
}

// nearestWord compares word with known ones until compared reaches a bound.
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

// maxNear is the longest word, in bytes, for which a similar one is searched.
const maxNear = 40

// distance is how many bytes must be added, removed, changed or swapped with their neighbour to
// turn a into b, or some number from limit on when they are at least that many. Neither is longer than
// maxNear by more than three bytes.
func distance(a, b string, limit int) int {
	var rows [3][maxNear + 5]int
	before, row, next := &rows[0], &rows[1], &rows[2]
	for j := range len(b) + 1 {
		row[j] = j
	}
	least := 0 // of row
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
			return limit // a swap looks back two rows, nothing further
		}
		before, row, next = row, next, before
	}
	return row[len(b)]
}

// Allow says which words may stand somewhere.
func Allow(words []string) string {
	if len(words) == 1 {
		return "only " + words[0] + " is allowed"
	}
	return "allowed are " + OrList(words)
}

// Choices is the tail of a message about an unknown word: the nearest of those that are known, if one is near, and
// what is allowed where the word stands.
func Choices(word string, known, allowed []string) string {
	if near := DidYouMean(word, known); near != "" {
		list := Allow(allowed)
		return near + " " + strings.ToUpper(list[:1]) + list[1:]
	}
	return "; " + Allow(allowed)
}

// OrList is "a, b or c".
func OrList(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}
