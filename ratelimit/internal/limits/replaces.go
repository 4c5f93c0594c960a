package limits

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// replaceGraph has, for one domain, which rule replaces which. It serves to warn about likely errors: names that no
// rule has, names that several rules have, and cycles of rules that replace each other, so that none of them counts.
type replaceGraph struct {
	*checker
	rules     map[string]namedLimit // the first rule with each name
	replacing []replacingRule       // the rules that have a replaces list
}

type namedLimit struct {
	*Limit
	entry *Entry
}

type replacingRule struct {
	*Limit
	file, path string
}

// collect gathers the rules of all entries and warns about names that several rules have.
func (g *replaceGraph) collect(list []Entry) {
	for i := range list {
		if !g.report.Step() {
			return
		}
		e := &list[i]
		for n := range e.limits() {
			l := e.limit(n)
			if first, known := g.rules[l.Name]; l.Name != "" && known {
				g.report.Warning(g.at(e, l.NamePos), l.Name,
					"the rule in %s has the name %s too; what replaces one replaces both",
					whereEntry(first.entry, first.NamePos), Quote(l.Name))
			} else if l.Name != "" {
				g.rules[l.Name] = namedLimit{l, e}
			}
			if len(l.Replaces) > 0 {
				g.replacing = append(g.replacing, replacingRule{l, e.File, g.dotted(e)})
			}
		}
		g.path = append(g.path, e)
		g.collect(e.Children)
		g.path = g.path[:len(g.path)-1]
	}
}

func (g *replaceGraph) warn() {
	if len(g.replacing) == 0 {
		return
	}
	names := slices.Sorted(maps.Keys(g.rules))
	for _, r := range g.replacing {
		for _, x := range r.Replaces {
			if !g.report.Step() {
				return
			}
			if x.Name != "" && g.rules[x.Name].Limit == nil {
				g.report.Warning(Place{File: r.file, Pos: x.Pos, Domain: g.domain, Path: r.path}, x.Name,
					"no rule of this domain has the name %s%s", Quote(x.Name), g.report.suggest(x.Name, names))
			}
		}
	}
	g.circles(names)
}

// circles warns about each group of names whose rules replace each other, once, by a shortest cycle.
func (g *replaceGraph) circles(names []string) {
	w := newNameGraph(names, g.replacing)
	groups := w.groups(g.report.Step)
	sizes := map[int32]int{}
	for _, group := range groups {
		sizes[group]++
	}
	reported := map[int32]bool{}
	for n, group := range groups {
		if sizes[group] < 2 || reported[group] {
			continue
		}
		reported[group] = true
		circle, closing := w.circle(int32(n), groups)
		at := Place{File: closing.rule.file, Pos: closing.pos, Domain: g.domain, Path: closing.rule.path}
		g.report.Warning(at, names[n],
			"rules replace each other in a circle (%s); a request that matches them all has no limit left",
			g.shownCircle(names, circle))
	}
}

// maxMembers is the number of rules of a cycle that a warning names.
const maxMembers = 10

func (g *replaceGraph) shownCircle(names []string, circle []int32) string {
	var shown []string
	for _, n := range circle[:min(len(circle), maxMembers)] {
		shown = append(shown, OneLine(names[n]))
	}
	if len(circle) > maxMembers {
		return strings.Join(shown, " replaces ") + fmt.Sprintf(" and so on, %d rules in all", len(circle))
	}
	return strings.Join(append(shown, OneLine(names[circle[0]])), " replaces ")
}

// nameGraph is a graph whose nodes are the names of rules, numbered, and whose edges lead from a rule to the rules that
// it replaces.
type nameGraph struct {
	number map[string]int32
	rules  [][]replacingRule // indexed by the number of the rules' name
}

func newNameGraph(names []string, replacing []replacingRule) *nameGraph {
	w := &nameGraph{number: make(map[string]int32, len(names)), rules: make([][]replacingRule, len(names))}
	for i, name := range names {
		w.number[name] = int32(i)
	}
	for _, r := range replacing {
		if n, ok := w.number[r.Name]; ok {
			w.rules[n] = append(w.rules[n], r)
		}
	}
	return w
}

// edge leads from a rule to a name in its replaces list that other rules have.
type edge struct {
	to   int32
	rule replacingRule
	pos  Pos
}

// edgeAt returns the edge of node n at cursor and advances the cursor. ok is false after the last edge.
func (w *nameGraph) edgeAt(n int32, cursor *[2]int) (e edge, ok bool) {
	for rules := w.rules[n]; cursor[0] < len(rules); cursor[0], cursor[1] = cursor[0]+1, 0 {
		r := rules[cursor[0]]
		for cursor[1] < len(r.Replaces) {
			x := &r.Replaces[cursor[1]]
			cursor[1]++
			if to, known := w.number[x.Name]; known && to != n {
				return edge{to, r, x.Pos}, true
			}
		}
	}
	return edge{}, false
}

// groups returns for each node the number of its strongly connected component. It is Tarjan's algorithm with an
// explicit stack, since chains may be 100,000 rules long. If step returns false, groups ends early.
func (w *nameGraph) groups(step func() bool) []int32 {
	type frame struct {
		node   int32
		cursor [2]int
	}
	var (
		group  = make([]int32, len(w.rules)) // 0: no component yet
		index  = make([]int32, len(w.rules)) // 0: not visited yet
		low    = make([]int32, len(w.rules))
		open   []int32 // the nodes visited that have no component yet
		frames []frame
		met    int32
		made   int32
	)
	enter := func(n int32) {
		met++
		index[n], low[n] = met, met
		open = append(open, n)
		frames = append(frames, frame{node: n})
	}
	for root := range w.rules {
		if index[root] != 0 {
			continue
		}
		enter(int32(root))
		for len(frames) > 0 {
			if !step() {
				return nil
			}
			f := &frames[len(frames)-1]
			n := f.node
			if e, ok := w.edgeAt(n, &f.cursor); ok {
				if index[e.to] == 0 {
					enter(e.to)
				} else if group[e.to] == 0 {
					low[n] = min(low[n], index[e.to])
				}
				continue
			}
			frames = frames[:len(frames)-1]
			if len(frames) > 0 {
				up := frames[len(frames)-1].node
				low[up] = min(low[up], low[n])
			}
			if low[n] != index[n] {
				continue
			}
			made++
			for done := false; !done; open = open[:len(open)-1] {
				last := open[len(open)-1]
				group[last], done = made, last == n
			}
		}
	}
	return group
}

// circle returns a shortest cycle through a node within its component, and the edge that closes the cycle.
func (w *nameGraph) circle(start int32, groups []int32) (circle []int32, closing edge) {
	from := map[int32]int32{start: start}
	for queue := []int32{start}; len(queue) > 0; queue = queue[1:] {
		n := queue[0]
		var cursor [2]int
		for {
			e, ok := w.edgeAt(n, &cursor)
			if !ok {
				break
			}
			if e.to == start {
				for ; n != start; n = from[n] {
					circle = append(circle, n)
				}
				circle = append(circle, start)
				slices.Reverse(circle)
				return circle, e
			}
			if _, met := from[e.to]; !met && groups[e.to] == groups[start] {
				from[e.to] = n
				queue = append(queue, e.to)
			}
		}
	}
	return []int32{start}, edge{rule: w.rules[start][0]} // not reached: the nodes of a component are connected
}
