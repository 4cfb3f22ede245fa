package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"pulley/internal/cli"
	"pulley/internal/content"
	"pulley/internal/source"
)

// show is --dry-run: it needs no etcd.
func (p publishOptions) show(ctx context.Context, dir string) (err error) {
	progress := cli.NewProgress(p.env)
	defer progress.Done()
	from, err := p.read(ctx, dir, progress)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	left, err := from.LeftOut()
	if err != nil {
		return err
	}
	progress.Done()
	for _, e := range from.manifest.Entries {
		cli.Cleanf(p.env.Stdout, "%s\n", shownEntry(e))
	}
	if len(left) > 0 {
		fmt.Fprintln(p.env.Stdout, "left out:")
		table := cli.NewTable(p.env)
		for _, l := range left {
			table.Row("  "+l.Path, l.Why)
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	what := dir
	if p.version != "" {
		what = p.version + " from " + dir
	}
	cli.Cleanf(p.env.Stdout, "would publish %s: %s, %s, tree %.12s; %d left out\n", what,
		cli.Count(from.manifest.Files(), "file"), cli.Bytes(from.manifest.Bytes()), from.manifest.Tree(), len(left))
	if about := describeSource(from.Facts); about != "" {
		cli.Cleanf(p.env.Stdout, "%s\n", about)
	}
	return nil
}

func shownEntry(e content.Entry) string {
	switch e.Kind {
	case content.KindDirectory:
		return e.Path + "/"
	case content.KindLink:
		return e.Path + " -> " + e.Target
	case content.KindExecutable:
		return e.Path + "*"
	}
	return e.Path
}

// describeSource is where a tree comes from, as far as that is known; "" when nothing is.
func describeSource(f source.Facts) string {
	var parts []string
	if f.Commit != "" {
		about := fmt.Sprintf("commit %.12s", f.Commit)
		if f.Ref != "" {
			about += " (" + f.Ref + ")"
		}
		if f.Dirty {
			about += " with changes that are in no commit"
		}
		parts = append(parts, about)
	}
	if f.Modules != "" {
		parts = append(parts, "modules by "+string(f.Modules))
	}
	return strings.Join(parts, "; ")
}

// signedNow says what became of the signature of a release that was there already.
func (done published) signedNow() string {
	switch {
	case done.signedBy != "":
		return "; it has a signature by " + done.signedBy
	case done.signed:
		return "; signed now"
	}
	return ""
}

// report says what was published, what it costs a node, and whether nodes will believe it.
func (p publishOptions) report(done published) {
	r := done.release
	if !done.created {
		fmt.Fprintf(p.env.Stdout, "%s is published already, with this very tree %.12s%s\n", r.Version, r.Content.Tree, done.signedNow())
		return
	}
	sent := cli.Count(done.sent, "new object")
	if r.Content.Chain.Delta != nil {
		sent += " and a delta"
	}
	fmt.Fprintf(p.env.Stdout, "published %s: %s, %s, tree %.12s; %s, %s, went to etcd\n",
		r.Version, cli.Count(r.Content.Files, "file"), cli.Bytes(r.Content.Bytes), r.Content.Tree, sent, cli.Bytes(done.sentBytes))
	if r.Content.Chain.Delta != nil && done.parent != "" {
		fmt.Fprintf(p.env.Stdout, "nodes on %s fetch %s, others up to %s\n", done.parent, cli.Bytes(r.Content.Chain.Delta.Size), cli.Bytes(r.Content.Cold()))
	} else {
		fmt.Fprintf(p.env.Stdout, "it begins a line: nodes fetch up to %s\n", cli.Bytes(r.Content.Cold()))
	}
	if r.Dirty {
		fmt.Fprintln(p.env.Stdout, "it has changes that are in no commit")
	}
	if done.signed {
		fmt.Fprintln(p.env.Stdout, "signed")
	} else {
		fmt.Fprintln(p.env.Stdout, "unsigned: nodes that have allowed signers will refuse it")
	}
	fmt.Fprintf(p.env.Stdout, "next: pulley promote %s -e ENVIRONMENT\n", r.Version)
}
