package limits

import (
	"maps"
	"slices"
	"strings"
)

// replaceGraph is who replaces whom in one domain, to warn about what surely is a mistake: names
// nobody has, names that several rules have, and circles, in which all limits are dropped.
type replaceGraph struct {
	*checker
	rules map[string]*entry // by name, the first that has it
	edges []replaceEdge
}

type replaceEdge struct {
	from *entry
	path string
	to   replaced
}

// collect walks all entries, warning about names that stand twice.
func (g *replaceGraph) collect(list []entry) {
	for i := range list {
		e := &list[i]
		if l := e.limit; l != nil {
			if first := g.rules[l.name]; l.name != "" && first != nil {
				g.report.warning(g.at(e, l.namePos), l.name, "the rule in %s has the name %s too; what replaces one replaces both", whereEntry(first, first.limit.namePos), quote(l.name))
			} else if l.name != "" {
				g.rules[l.name] = e
			}
			for _, x := range l.replaces {
				g.edges = append(g.edges, replaceEdge{e, g.dotted(e), x})
			}
		}
		g.path = append(g.path, e)
		g.collect(e.children)
		g.path = g.path[:len(g.path)-1]
	}
}

func (g *replaceGraph) warn() {
	if len(g.edges) == 0 {
		return
	}
	names := slices.Sorted(maps.Keys(g.rules))
	next := map[string][]replaceEdge{}
	for _, x := range g.edges {
		if x.to.name != "" && g.rules[x.to.name] == nil {
			at := place{x.from.file, x.to.pos, g.domain, x.path}
			g.report.warning(at, x.to.name, "no rule of this domain has the name %s%s", quote(x.to.name), didYouMean(x.to.name, names))
			continue
		}
		if n := x.from.limit.name; n != "" && n != x.to.name {
			next[n] = append(next[n], x)
		}
	}
	g.circles(names, next)
}

// circles reports each way back to a rule that is being followed.
func (g *replaceGraph) circles(names []string, next map[string][]replaceEdge) {
	const following, done = 1, 2
	state := map[string]int{}
	var trail []string
	var follow func(name string)
	follow = func(name string) {
		state[name] = following
		trail = append(trail, name)
		for _, x := range next[name] {
			switch state[x.to.name] {
			case 0:
				follow(x.to.name)
			case following:
				circle := append(slices.Clone(trail[slices.Index(trail, x.to.name):]), x.to.name)
				at := place{x.from.file, x.to.pos, g.domain, x.path}
				g.report.warning(at, x.to.name, "rules replace each other in a circle (%s); a request that matches them all has no limit left", strings.Join(circle, " replaces "))
			}
		}
		trail = trail[:len(trail)-1]
		state[name] = done
	}
	for _, n := range names {
		if state[n] == 0 {
			follow(n)
		}
	}
}
