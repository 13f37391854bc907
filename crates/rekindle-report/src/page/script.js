"use strict";
(function () {
  var tip = document.getElementById("tip");
  var at = null;

  // Titles become ours, so that the browser does not show them a second time.
  document.querySelectorAll(".mark").forEach(function (mark) {
    var title = mark.querySelector("title");
    if (!title) { return; }
    mark.setAttribute("data-tip", title.textContent);
    title.remove();
  });

  function hide() {
    if (at) { at.classList.remove("at"); }
    at = null;
    tip.hidden = true;
  }

  function show(mark, x, y) {
    if (at !== mark) {
      hide();
      at = mark;
      mark.classList.add("at");
      tip.textContent = mark.getAttribute("data-tip");
      tip.hidden = false;
    }
    var wide = document.documentElement.clientWidth - tip.offsetWidth - 8;
    var top = y - tip.offsetHeight - 14;
    tip.style.left = Math.max(8, Math.min(wide, x - tip.offsetWidth / 2)) + "px";
    tip.style.top = (top > 8 ? top : y + 20) + "px";
  }

  function markAt(event) {
    var target = event.target;
    return target.closest ? target.closest(".mark") : null;
  }

  // A pointer: a mouse that moves, or a finger that touches.
  ["pointermove", "pointerdown"].forEach(function (kind) {
    document.addEventListener(kind, function (event) {
      var mark = markAt(event);
      if (mark) { show(mark, event.clientX, event.clientY); } else { hide(); }
    });
  });
  window.addEventListener("scroll", hide, { passive: true });

  // Keys: a figure has the focus, and arrows go from mark to mark.
  document.querySelectorAll("svg.figure").forEach(function (figure) {
    var marks = Array.prototype.slice.call(figure.querySelectorAll(".mark"));
    // In the order of the axis, whatever was drawn first.
    function place(mark) { return parseFloat(mark.getAttribute("x") || mark.getAttribute("cx")); }
    marks.sort(function (left, right) { return place(left) - place(right); });
    function go(index) {
      var mark = marks[Math.max(0, Math.min(marks.length - 1, index))];
      if (!mark) { return; }
      var box = mark.getBoundingClientRect();
      show(mark, box.left + box.width / 2, box.top);
    }
    figure.addEventListener("keydown", function (event) {
      var now = marks.indexOf(at);
      if (event.key === "ArrowRight" || event.key === "ArrowDown") { go(now + 1); }
      else if (event.key === "ArrowLeft" || event.key === "ArrowUp") { go(now - 1); }
      else if (event.key === "Home") { go(0); }
      else if (event.key === "End") { go(marks.length - 1); }
      else if (event.key === "Escape") { hide(); return; }
      else { return; }
      event.preventDefault();
    });
    figure.addEventListener("blur", hide);
  });
})();
